"""All-reduce beside gloo: `python -m bench allreduce [--ranks 2,4,8] [--sizes 4KiB,...] [--rounds 15]`."""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter

from bench.fleet import run_workers
from bench.machine import describe_machine

SIZES = "4KiB,64KiB,1MiB,16MiB,64MiB,256MiB"
RESULTS = Path(__file__).parent / "results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default="2,4,8", help="numbers of ranks, separated by commas (default: %(default)s)")
    parser.add_argument("--sizes", default=SIZES, help="bytes of the fp32 tensor (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each peer at each size (default: %(default)s)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a ring setting, may be repeated"
    )
    parser.add_argument("--asyncio", action="store_true", help="asyncio's own event loop instead of uvloop")
    parser.add_argument("--save", action="store_true", help="write bench/results/allreduce.json")


def run(options: argparse.Namespace) -> None:
    sizes = [int(TypeAdapter(ByteSize).validate_python(size)) for size in options.sizes.split(",")]
    config = dict(setting.split("=", 1) for setting in options.set)
    print(describe_machine())
    print(f"{'ranks':>5} {'bytes':>10} {'algorithm':>9} {'gloo':>10} {'ringwide':>10}   ratio [quartiles]")
    cells = []
    for ranks in map(int, options.ranks.split(",")):
        task = {"sizes": sizes, "rounds": options.rounds, "config": config, "uvloop": not options.asyncio}
        for cell in run_workers("bench.allreduce_worker", ranks, task):
            cells.append({"ranks": ranks, **summary(cell)})
            print(row(cells[-1]), flush=True)
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        report = {"machine": describe_machine(), "rounds": options.rounds, "cells": cells}
        (RESULTS / "allreduce.json").write_text(json.dumps(report, indent=1) + "\n")
        print(f"\n{markdown(report)}")


def markdown(report: dict[str, Any]) -> str:
    """The table as the README shows it."""
    rows = [
        f"| {cell['ranks']} | {size_name(cell['bytes'])} | {cell['algorithm']} | {duration(cell['gloo_seconds'])} "
        f"| {duration(cell['ringwide_seconds'])} | **{cell['ratio']:.2f}x** "
        f"| {cell['ratio_quartiles'][0]:.2f} - {cell['ratio_quartiles'][1]:.2f} |"
        for cell in report["cells"]
    ]
    heading = "| ranks | size | algorithm | gloo | ringwide | gloo / ringwide | quartiles |"
    return "\n".join([heading, "| --: | --: | --- | --: | --: | --: | --- |", *rows])


def size_name(nbytes: int) -> str:
    return f"{nbytes // 2**20} MiB" if nbytes >= 2**20 else f"{nbytes // 2**10} KiB"


def summary(cell: dict[str, Any]) -> dict[str, Any]:
    """Medians of the turns, and the median and quartiles of the ratio, turn by turn."""
    ratios = [gloo / ours for gloo, ours in zip(cell["gloo"], cell["ringwide"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "bytes": cell["bytes"],
        "algorithm": cell["algorithm"],
        "gloo_seconds": statistics.median(cell["gloo"]),
        "ringwide_seconds": statistics.median(cell["ringwide"]),
        "ratio": middle,
        "ratio_quartiles": [low, high],
    }


def row(cell: dict[str, Any]) -> str:
    low, high = cell["ratio_quartiles"]
    return (
        f"{cell['ranks']:>5} {cell['bytes']:>10} {cell['algorithm']:>9} {duration(cell['gloo_seconds']):>10} "
        f"{duration(cell['ringwide_seconds']):>10}   {cell['ratio']:.2f}x [{low:.2f} - {high:.2f}]"
    )


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
