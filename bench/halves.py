"""16-bit floats beside gloo: `python -m bench halves [--ranks 2,4] [--sizes 16MiB,64MiB] [--rounds 9]`.

All-reduce of bfloat16 and float16 over gloo, over ringwide, and over ringwide with `half_precision: native`: groups of
the same processes, in turns. float32 of the same bytes is for comparison. Beside the time of each: what the sum of
random numbers is off by, relative to the exact sum, and the bytes that all ranks together send for each number.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter

from bench.fleet import run_workers
from bench.machine import describe_machine
from bench.units import duration, size_name

RESULT = Path(__file__).parent / "results" / "halves.json"
BACKENDS = ("gloo", "ringwide", "native")
DTYPES = ("bfloat16", "float16", "float32")
BAR = 1.8  # gloo's time over ours, for halves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, with commas (default: %(default)s)")
    parser.add_argument("--sizes", default="16MiB,64MiB", help="bytes of the tensor (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each backend (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help=f"write bench/results/{RESULT.name}")


def run(options: argparse.Namespace) -> None:
    print(describe_machine())
    sizes = [int(TypeAdapter(ByteSize).validate_python(size)) for size in options.sizes.split(",")]
    task = {"backends": BACKENDS, "dtypes": DTYPES, "sizes": sizes, "rounds": options.rounds}
    cells = [
        {"ranks": ranks, **summary(cell)}
        for ranks in map(int, options.ranks.split(","))
        for cell in run_workers("bench.halves_worker", ranks, task)
    ]
    report = {"machine": describe_machine(), "rounds": options.rounds, "cells": cells}
    print(markdown(report))
    for cell in cells:
        if cell["dtype"] != "float32":
            verdict = "met   " if cell["ringwide"]["ratio"] >= BAR else "MISSED"
            where = f"{size_name(cell['bytes'])} of {cell['dtype']}, {cell['ranks']} ranks"
            print(f"{verdict} {where}: {cell['ringwide']['ratio']:.2f}x of {BAR}x")
    if options.save:
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


def summary(cell: dict[str, Any]) -> dict[str, Any]:
    """Medians of the turns, and how a turn stands to that of gloo in the same round."""
    found: dict[str, Any] = {"dtype": cell["dtype"], "bytes": cell["bytes"]}
    gloo = cell["seconds"]["gloo"]
    for backend, seconds in cell["seconds"].items():
        ratios = [theirs / ours for theirs, ours in zip(gloo, seconds, strict=True)]
        found[backend] = {
            "seconds": statistics.median(seconds),
            "ratio": statistics.median(ratios),
            "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2],
            "error": cell["errors"][backend],
            "wire_bytes": cell["wire_bytes"].get(backend),
        }
    return found


def markdown(report: dict[str, Any]) -> str:
    heading = (
        "| ranks | dtype | size | gloo | ringwide | gloo / ringwide | gloo / native"
        " | bytes sent for each number (native) | error of gloo | of ringwide | of native |"
    )
    rows = [
        f"| {cell['ranks']} | {cell['dtype']} | {size_name(cell['bytes'])} | {duration(cell['gloo']['seconds'])}"
        f" | {duration(cell['ringwide']['seconds'])} | {_ratio(cell['ringwide'])} | {_ratio(cell['native'])}"
        f" | {cell['ringwide']['wire_bytes']:.3g} ({cell['native']['wire_bytes']:.3g})"
        f" | {cell['gloo']['error']:.2g} | {cell['ringwide']['error']:.2g} | {cell['native']['error']:.2g} |"
        for cell in report["cells"]
    ]
    return "\n".join([heading, "| --: | --- | --: |" + " --: |" * 8, *rows])


def _ratio(measured: dict[str, Any]) -> str:
    low, high = measured["ratio_quartiles"]
    return f"{measured['ratio']:.2f}x [{low:.2f} - {high:.2f}]"
