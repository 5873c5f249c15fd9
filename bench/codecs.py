"""Codecs beside each other and gloo, on links of several rates: `python -m bench codecs [--rates loopback,1Gbit]`.

Rates other than loopback are measured on hosts with limited links (`bench/hosts.py`), which needs root.
"""

import argparse
import json
import re
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter

from bench.codecs_report import heading, judge, lesser_markdown, markdown, rate_name, row, summarise
from bench.fleet import run_workers
from bench.hosts import CONGESTION_CONTROL, HostsUnavailable, make_hosts
from bench.machine import describe_machine

ROOT = Path(__file__).parents[1]
RESULTS, PLOT = ROOT / "bench" / "results" / "codecs.json", ROOT / "docs" / "codecs.svg"
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
ROUNDS_SECONDS = 5  # of `none`, at a rate for which no number of rounds is given
FEWEST_ROUNDS, MOST_ROUNDS = 3, 9


@dataclass(frozen=True, slots=True)
class Variant:
    """What takes a turn. Without settings of a ring it is gloo; one that learns needs calls to make up its mind.

    Those of the lesser set stand in a table of their own. They take fewer turns, and only on limited links.
    """

    name: str
    settings: dict[str, Any] | None
    data: str = "gaussian"
    learns: bool = False
    lesser: bool = False


LOSSY = ("bf16", "fp16", "int8", "topk")
LESSER = ("lz4-frame", "zlib")
LESSER_ROUNDS = 3
AUTO, AUTO_LOSSY = {"codec": "auto"}, {"codec": "auto", "allow_lossy": True}
VARIANTS = (
    Variant("gloo", None),
    Variant("none", {"codec": "none"}),
    Variant("lz4", {"codec": "lz4"}),
    *(Variant(codec, {"codec": codec, "allow_lossy": True}) for codec in LOSSY),
    Variant("int8, fed back", {"codec": "int8", "allow_lossy": True, "error_feedback": True}),
    Variant("auto", AUTO, learns=True),
    Variant("auto, lossy", AUTO_LOSSY, learns=True),
    Variant("none", {"codec": "none"}, data="zeros"),
    Variant("lz4", {"codec": "lz4"}, data="zeros"),
    Variant("auto", AUTO, data="zeros", learns=True),
    *(Variant(codec, {"codec": codec}, data=data, lesser=True) for data in ("gaussian", "zeros") for codec in LESSER),
    *(
        Variant(f"{codec} shuffled", {"codec": codec, "codec_shuffle": True}, lesser=True)
        for codec in ("lz4", "zlib")  # lz4-frame makes of it what lz4 makes
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=int, default=4, help="how many (default: %(default)s)")
    parser.add_argument("--size", default="64MB", help="bytes of the fp32 tensor (default: %(default)s)")
    parser.add_argument(
        "--rates", default="loopback,1Gbit,100Mbit", help="of the links, separated by commas (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, help="turns of each variant (default: 3 to 9, fewer on slow links)")
    parser.add_argument("--warm-up", type=int, default=16, help="calls that auto has to choose (default: %(default)s)")
    parser.add_argument("--only", metavar="NAMES", help="of these variants only, separated by commas: gloo,none,int8")
    parser.add_argument("--save", action="store_true", help="write bench/results/codecs.json and docs/codecs.svg")


def run(options: argparse.Namespace) -> None:
    if options.save and find_spec("matplotlib") is None:
        raise SystemExit("bench: --save draws a picture and needs matplotlib: pip install --editable '.[bench]'")
    nbytes = int(TypeAdapter(ByteSize).validate_python(options.size))
    only = options.only.split(",") if options.only else [variant.name for variant in VARIANTS]
    variants = [variant for variant in VARIANTS if variant.name in only]
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "congestion_control": CONGESTION_CONTROL,
        "hosts": options.hosts,
        "bytes": nbytes,
        "cells": [],
        "lesser": [],
    }
    print(f"{report['machine']}\n{options.hosts} hosts, {nbytes:,} bytes of float32\n\n{heading()}", flush=True)
    for rate in map(parse_rate, options.rates.split(",")):
        try:
            cells = measure(variants, rate, nbytes, options)
        except HostsUnavailable as error:
            print(f"{rate_name(rate)} is skipped: {error}", flush=True)
            continue
        for cell in cells:
            report["lesser" if cell.pop("lesser") else "cells"].append(cell)
        print("\n".join(map(row, cells)), flush=True)
    report["bars"] = judge(report["cells"])
    for bar in report["bars"]:
        print(f"{'met ' if bar['met'] else 'MISSED'} {bar['bar']}: {bar['found']}")
    if options.save:
        save(report)


def measure(
    variants: list[Variant], rate: float | None, nbytes: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """All variants at one rate, in one set of processes."""
    variants = [variant for variant in variants if rate is not None or not variant.lesser]
    task = {
        "variants": [asdict(variant) for variant in variants],
        "bytes": nbytes,
        "rounds": options.rounds or rounds_for(rate, nbytes, options.hosts),
        "lesser_rounds": LESSER_ROUNDS,
        "warm_up": options.warm_up,
        "insecure": rate is not None,
    }
    with nullcontext() if rate is None else make_hosts(options.hosts, rate) as hosts:
        print(f"{rate_name(rate)}, {task['rounds']} rounds", file=sys.stderr, flush=True)
        played = run_workers(
            "bench.codecs_worker", options.hosts, task, hosts=hosts, rings=len(variants), timeout_seconds=3600
        )
    return summarise(task["variants"], played, rate=rate, nbytes=nbytes, hosts=options.hosts)


def save(report: dict[str, Any]) -> None:
    from bench.codecs_plot import plot  # needs matplotlib, which measuring does not

    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    plot(report, PLOT)
    print(f"\n{markdown(report)}\n\n{lesser_markdown(report)}")


def rounds_for(rate: float | None, nbytes: int, hosts: int) -> int:
    if rate is None:
        return MOST_ROUNDS
    seconds = 2 * (hosts - 1) / hosts * nbytes * 8 / rate
    return min(max(int(ROUNDS_SECONDS / max(seconds, 1e-9)), FEWEST_ROUNDS), MOST_ROUNDS)


def parse_rate(text: str) -> float | None:
    """Bits per second; none for loopback."""
    if text == "loopback":
        return None
    found = re.fullmatch(r"([\d.]+)\s*([kmg]bit)", text.strip().lower())
    if found is None:
        raise SystemExit(f"bench: {text!r} is not a rate; write loopback, or for example 1Gbit or 100Mbit")
    return float(found[1]) * UNITS[found[2]]
