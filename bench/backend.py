"""torch.distributed over gloo and over ringwide: `python -m bench backend [--ranks 2,4] [--rounds 15] [--only NAMES]`.

all_reduce, DDP with 25 MB of gradients, DDP with 200 small parameters: both backends are groups of the same processes
and take turns. Then DDP on four hosts with links of 100 Mbit/s, over gloo, over ringwide, and over gloo with ringwide's
hook and its codec int8; that needs root, see `bench/hosts.py`.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.fleet import run_workers
from bench.hosts import HostsUnavailable, make_hosts
from bench.machine import describe_machine

RESULT = Path(__file__).parent / "results" / "backend.json"
HOSTS, RATE = 4, 100e6
ON_HOSTS = "hosts"
CASES = {
    "all_reduce of 4 KiB": {"what": "all_reduce", "bytes": 4096, "calls": 200},
    "all_reduce of 1 MiB": {"what": "all_reduce", "bytes": 2**20, "calls": 20},
    "all_reduce of 64 MiB": {"what": "all_reduce", "bytes": 2**26, "calls": 2},
    "DDP, 25 MB of gradients": {"what": "large", "calls": 3},
    "DDP, 200 small parameters": {"what": "small", "calls": 40},
}
BARS = {  # gloo's time over ours, and with how many ranks
    "all_reduce of 4 KiB": {2: 3.0},
    "all_reduce of 64 MiB": {2: 1.2},
    "DDP, 25 MB of gradients": {2: 1.3, 4: 1.3},
    "DDP, 200 small parameters": {2: 2.0, 4: 2.0},
}
HOOK = "DDP, 25 MB of gradients, 100 Mbit/s"
HOOK_BAR = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, separated by commas (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each backend (default: %(default)s)")
    parser.add_argument(
        "--only", metavar="WORDS", help=f"cases with one of these words, as 4,small; {ON_HOSTS}: the hook"
    )
    parser.add_argument("--save", action="store_true", help="write bench/results/backend.json")


def run(options: argparse.Namespace) -> None:
    print(describe_machine())
    cells = []
    chosen = {name: case for name, case in CASES.items() if _is_meant(name, options.only)}
    task = {"cases": list(chosen.values()), "rounds": options.rounds, "backends": ["gloo", "ringwide"]}
    for ranks in map(int, options.ranks.split(",")) if chosen else ():
        played = run_workers("bench.backend_worker", ranks, task)
        cells += [cell for name, turns in zip(chosen, played, strict=True) for cell in summary(name, ranks, turns)]
    if _is_meant(ON_HOSTS, options.only):
        cells += on_hosts(options.rounds)
    report = {"machine": describe_machine(), "rounds": options.rounds, "cells": cells}
    print(markdown(report))
    for cell in cells:
        if cell["bar"]:
            verdict = "met   " if cell["ratio"] >= cell["bar"] else "MISSED"
            found = f"{cell['ratio']:.2f}x of {cell['bar']}x"
            print(f"{verdict} {cell['case']}, {cell['ranks']} ranks, {cell['backend']}: {found}")
    if options.save:
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


def _is_meant(name: str, only: str | None) -> bool:
    return only is None or any(word in name.replace(",", " ").split() for word in only.split(","))


def on_hosts(rounds: int) -> list[dict[str, Any]]:
    rounds = max(3, rounds // 3)  # a step takes seconds
    task = {"cases": [{"what": "large", "calls": 1}], "rounds": rounds, "backends": ["gloo", "ringwide", "hook int8"]}
    try:
        with make_hosts(HOSTS, RATE) as hosts:
            (turns,) = run_workers("bench.backend_worker", HOSTS, task, hosts=hosts, timeout_seconds=1800)
    except HostsUnavailable as error:
        print(f"{HOOK} is skipped: {error}", file=sys.stderr)
        return []
    return summary(HOOK, HOSTS, turns)


def summary(case: str, ranks: int, turns: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Of each backend but gloo: the medians of its turns and of gloo's, and their ratio, turn by turn."""
    return [
        {
            "case": case,
            "ranks": ranks,
            "backend": backend,
            "seconds": statistics.median(ours),
            "gloo_seconds": statistics.median(turns["gloo"]),
            "ratio": statistics.median(_ratios(turns["gloo"], ours)),
            "ratio_quartiles": statistics.quantiles(_ratios(turns["gloo"], ours), n=4)[::2],
            "bar": HOOK_BAR if backend.startswith("hook") else BARS.get(case, {}).get(ranks),
        }
        for backend, ours in turns.items()
        if backend != "gloo"
    ]


def _ratios(gloo: list[float], ours: list[float]) -> list[float]:
    return [theirs / mine for theirs, mine in zip(gloo, ours, strict=True)]


def markdown(report: dict[str, Any]) -> str:
    rows = [
        f"| {cell['case']} | {cell['ranks']} | {cell['backend']} | {1 / cell['gloo_seconds']:,.3g} "
        f"| {1 / cell['seconds']:,.3g} | {cell['ratio']:.2f}x "
        f"| {cell['ratio_quartiles'][0]:.2f} - {cell['ratio_quartiles'][1]:.2f} |"
        for cell in report["cells"]
    ]
    heading = "| | ranks | with | gloo, a second | ours, a second | ours / gloo | quartiles |"
    return "\n".join([heading, "| --- | --: | --- | --: | --: | --: | --- |", *rows])
