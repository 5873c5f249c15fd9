"""Ranks on one machine, by TCP and by Unix-domain sockets: `python -m bench same_host [--ranks 2,4] [--sizes ...]`.

All-reduce with `same_host: tcp` and `unix`, in the same processes and in turns.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter

from bench.allreduce import duration, size_name
from bench.fleet import run_workers
from bench.machine import describe_machine

RESULT = Path(__file__).parent / "results" / "same_host.json"
VARIANTS = {way: {"same_host": way} for way in ("tcp", "unix")}
SIZES = "4KiB,64KiB,1MiB,16MiB,64MiB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, separated by commas (default: %(default)s)")
    parser.add_argument("--sizes", default=SIZES, help="bytes of the fp32 tensor (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each at each size (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="write bench/results/same_host.json")


def run(options: argparse.Namespace) -> None:
    sizes = [int(TypeAdapter(ByteSize).validate_python(size)) for size in options.sizes.split(",")]
    task = {"sizes": sizes, "rounds": options.rounds, "variants": VARIANTS}
    print(describe_machine())
    cells = [
        summary(ranks, cell)
        for ranks in map(int, options.ranks.split(","))
        for cell in run_workers("bench.protection_worker", ranks, task, rings=len(VARIANTS))
    ]
    report = {"machine": describe_machine(), "rounds": options.rounds, "cells": cells}
    print(markdown(report))
    if options.save:
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


def summary(ranks: int, cell: dict[str, Any]) -> dict[str, Any]:
    """The medians of the turns, and how a turn stands to its neighbour, which met the same noise."""
    tcp, unix = cell["seconds"]["tcp"], cell["seconds"]["unix"]
    low, middle, high = statistics.quantiles([one / other for one, other in zip(tcp, unix, strict=True)], n=4)
    return {
        "ranks": ranks,
        "bytes": cell["bytes"],
        "tcp_seconds": statistics.median(tcp),
        "unix_seconds": statistics.median(unix),
        "ratio": middle,
        "ratio_quartiles": [low, high],
    }


def markdown(report: dict[str, Any]) -> str:
    rows = [
        f"| {cell['ranks']} | {size_name(cell['bytes'])} | {duration(cell['tcp_seconds'])} "
        f"| {duration(cell['unix_seconds'])} | **{cell['ratio']:.2f}x** "
        f"| {cell['ratio_quartiles'][0]:.2f} - {cell['ratio_quartiles'][1]:.2f} |"
        for cell in report["cells"]
    ]
    heading = "| ranks | size | tcp | unix | tcp / unix | quartiles |"
    return "\n".join([heading, "| --: | --: | --: | --: | --: | --- |", *rows])
