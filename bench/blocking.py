"""What waiting costs programs without asyncio: `python -m bench blocking [--ranks 2] [--sizes 4KiB] [--rounds 15]`.

The same all-reduce awaited on the program's own loop, and by `join_blocking`, whose loop has a thread of its own; then
the same while another thread of the program computes in Python, with the interpreter's usual switch interval
and with the one that the background loop sets.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter

from bench.fleet import run_workers
from bench.machine import describe_machine
from bench.units import size_name

RESULT = Path(__file__).parent / "results" / "blocking.json"
AWAITED = "awaited"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default="2", help="numbers of ranks, separated by commas (default: %(default)s)")
    parser.add_argument("--sizes", default="4KiB,64KiB,1MiB", help="bytes of the tensor (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="write bench/results/blocking.json")


def run(options: argparse.Namespace) -> None:
    sizes = [int(TypeAdapter(ByteSize).validate_python(size)) for size in options.sizes.split(",")]
    print(describe_machine())
    cells = []
    for ranks in map(int, options.ranks.split(",")):
        task = {"sizes": sizes, "rounds": options.rounds}
        for cell in run_workers("bench.blocking_worker", ranks, task, rings=2):
            cells += summary(ranks, cell)
    report = {"machine": describe_machine(), "rounds": options.rounds, "cells": cells}
    print(markdown(report))
    if options.save:
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


def summary(ranks: int, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each way: the median of its turns, and how much longer it took than awaiting, turn by turn."""
    awaited = cell["seconds"][AWAITED]
    return [
        {
            "ranks": ranks,
            "bytes": cell["bytes"],
            "way": way,
            "seconds": statistics.median(turns),
            "more": statistics.median(_differences(turns, awaited)),
            "more_quartiles": statistics.quantiles(_differences(turns, awaited), n=4)[::2],
        }
        for way, turns in cell["seconds"].items()
    ]


def _differences(ours: list[float], theirs: list[float]) -> list[float]:
    return [mine - other for mine, other in zip(ours, theirs, strict=True)]


def markdown(report: dict[str, Any]) -> str:
    rows = [
        f"| {cell['ranks']} | {size_name(cell['bytes'])} | {cell['way']} | {cell['seconds'] * 1e6:,.0f} us "
        f"| {cell['more'] * 1e6:+,.0f} us "
        f"| {cell['more_quartiles'][0] * 1e6:+,.0f} - {cell['more_quartiles'][1] * 1e6:+,.0f} |"
        for cell in report["cells"]
    ]
    heading = "| ranks | size | way | time | more than awaited | quartiles |"
    return "\n".join([heading, "| --: | --: | --- | --: | --: | --- |", *rows])
