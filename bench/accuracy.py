"""What lossy codecs lose, over the number of ranks: `python -m bench accuracy [--ranks 2,4,8,16] [--save]`.

Each rank brings gaussian numbers; the mean is compared with the exact one. "one call" is the root of the mean square of
the error, relative to that of the result. "20 calls" is the same for the sum of 20 results in a row, as a training loop
adds them up: with error feedback, what one call dropped comes with the next, so the sum is better than its parts.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from bench.fleet import run_workers
from bench.machine import describe_machine

RESULT = Path(__file__).parent / "results" / "accuracy.json"
CODECS = ("bf16", "fp16", "int8", "topk")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default="2,4,8,16", help="numbers of ranks, separated by commas")
    parser.add_argument("--count", type=int, default=1_000_000, help="numbers in the bucket (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=20, help="calls in a row (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="write bench/results/accuracy.json")


def run(options: argparse.Namespace) -> None:
    print(describe_machine())
    cells: list[dict[str, Any]] = []
    for ranks in map(int, options.ranks.split(",")):
        task = {"codecs": CODECS, "count": options.count, "calls": options.calls}
        cells += run_workers("bench.accuracy_worker", ranks, task)
        print(f"{ranks} ranks done", flush=True)
    report = {"machine": describe_machine(), "calls": options.calls, "cells": cells}
    print(markdown(report))
    if options.save:
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


def markdown(report: dict[str, Any]) -> str:
    """The table as the documents show it."""
    calls = report["calls"]
    heading = f"| codec | ranks | one call | {calls} calls, without feedback | {calls} calls, with feedback |"
    rows = [
        f"| {cell['codec']} | {cell['ranks']} | {cell['one']:.2%} | {cell['without']:.2%} | {cell['with']:.2%} |"
        for cell in sorted(report["cells"], key=lambda cell: (CODECS.index(cell["codec"]), cell["ranks"]))
    ]
    return "\n".join([heading, "| --- | --: | --: | --: | --: |", *rows])
