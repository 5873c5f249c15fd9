"""Where the time of an all-reduce goes: `python -m bench profile [--ranks 2,4] [--sizes 4KB,64MB] [--ways tcp,auto]`.

perf looks at rank 0 while all ranks make one call after the other; what it finds is grouped by what the processor does.
Start-up is not in it. perf must be there and allowed (root, or kernel.perf_event_paranoid of 1 or less).
"""

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench.fleet import run_workers
from bench.machine import describe_machine
from bench.units import parse_counts, parse_size, size_name

RESULTS = Path(__file__).parent / "results" / "profile.json"
GROUPS = (
    ("copies in user space", r"mem(move|cpy|set)"),
    ("adding", r"FLOAT_add|_add_|loop.*add"),
    ("kernel: copies", r"copy_(from|to)_iter|copy_user|rep_movs|copy_page|__memcpy"),
    ("kernel: waking and scheduling", r"sched|switch|wake|try_to|idle|irqrestore|epoll|ep_|eventfd|futex|yield|rcu"),
    ("kernel: network", r"tcp|skb|sock|unix_|net|ip_|loopback|softirq|csum|qdisc|xmit"),
)
"""What a symbol of the kernel or a library belongs to: the first that fits."""
WAYS = ("tcp", "unix", "auto")
LEAST_SECONDS = 0.5
LINE = re.compile(r"^\s*([\d.]+)%\s+(\S+)\s+\[([.k])\]\s+(.+?)\s*$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, separated by commas (default: %(default)s)")
    parser.add_argument("--sizes", default="4KB,1MB,64MB", help="of the fp32 tensor (default: %(default)s)")
    parser.add_argument("--ways", default="tcp,auto", help="values of same_host (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each profile (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="write bench/results/profile.json")


def run(options: argparse.Namespace) -> None:
    sizes, ways = [parse_size(size) for size in options.sizes.split(",")], options.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        raise SystemExit(f"bench: {', '.join(sorted(unknown))} is no way to talk; --ways takes {', '.join(WAYS)}")
    if options.seconds < LEAST_SECONDS:
        raise SystemExit(
            f"bench: --seconds {options.seconds:g} is too short for a profile; {LEAST_SECONDS:g} is the least"
        )
    print(describe_machine())
    cells = [
        cell
        for ranks in parse_counts(options.ranks)
        for way in ways
        for cell in profiles(ranks, way, sizes, options.seconds)
    ]
    report = {"machine": describe_machine(), "seconds": options.seconds, "cells": cells}
    print(markdown(report))
    if options.save:
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")


def profiles(ranks: int, way: str, sizes: list[int], seconds: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        task = {"sizes": sizes, "seconds": seconds, "same_host": way, "directory": directory}
        cells = run_workers("bench.profile_worker", ranks, task)
        return [
            {"ranks": ranks, "way": way, **cell, "shares": shares(Path(directory) / str(cell["bytes"]))}
            for cell in cells
        ]


def shares(recorded: Path) -> dict[str, float]:
    """Of the processor time of the rank, by group, in percent."""
    command = ["perf", "report", "--input", str(recorded), "--stdio", "--no-children", "--sort", "dso,symbol"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return grouped(text)


def grouped(report: str) -> dict[str, float]:
    found = {name: 0.0 for name, _ in GROUPS} | {"kernel: the rest": 0.0, "Python and the rest": 0.0}
    for line in report.splitlines():
        if match := LINE.match(line):
            found[group_of(match[3] == "k", match[4])] += float(match[1])
    return found


def group_of(in_kernel: bool, symbol: str) -> str:
    for name, pattern in GROUPS:
        if name.startswith("kernel") == in_kernel and re.search(pattern, symbol):
            return name
    return "kernel: the rest" if in_kernel else "Python and the rest"


def markdown(report: dict[str, Any]) -> str:
    names = list(report["cells"][0]["shares"])
    rows = [
        f"| {cell['ranks']} | {size_name(cell['bytes'])} | {cell['way']} | {cell['processor_seconds'] * 1e3:.2f} ms | "
        + " | ".join(f"{cell['shares'][name]:.0f} %" for name in names)
        + " |"
        for cell in report["cells"]
    ]
    heading = f"| ranks | size | same_host | processor, a call and rank | {' | '.join(names)} |"
    return "\n".join([heading, "| --: | --: | --- |" + " --: |" * (1 + len(names)), *rows])
