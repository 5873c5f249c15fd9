"""All-reduce with several values of one setting: a ring for each in the same processes, in turns, on this machine."""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter

from bench.fleet import run_workers
from bench.machine import describe_machine
from bench.units import duration, size_name


@dataclass(frozen=True, slots=True)
class Pair:
    """Values of a setting, and which two of them are compared: the time of one is divided by that of the other."""

    name: str
    setting: str
    values: Sequence[str]
    divided: str
    by: str
    sizes: str

    @property
    def result(self) -> Path:
        return Path(__file__).parent / "results" / f"{self.name}.json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ranks", default="2,4", help="numbers of ranks, with commas (default: %(default)s)")
        parser.add_argument("--sizes", default=self.sizes, help="bytes of the fp32 tensor (default: %(default)s)")
        parser.add_argument("--rounds", type=int, default=15, help="turns of each at each size (default: %(default)s)")
        parser.add_argument("--save", action="store_true", help=f"write bench/results/{self.name}.json")

    def run(self, options: argparse.Namespace) -> None:
        sizes = [int(TypeAdapter(ByteSize).validate_python(size)) for size in options.sizes.split(",")]
        variants = {value: {self.setting: value} for value in self.values}
        task = {"sizes": sizes, "rounds": options.rounds, "variants": variants}
        print(describe_machine())
        cells = [
            self.summary(ranks, cell)
            for ranks in map(int, options.ranks.split(","))
            for cell in run_workers("bench.protection_worker", ranks, task, rings=len(variants))
        ]
        report = {"machine": describe_machine(), "rounds": options.rounds, "cells": cells}
        print(self.markdown(report))
        if options.save:
            self.result.write_text(json.dumps(report, indent=1) + "\n")

    def summary(self, ranks: int, cell: dict[str, Any]) -> dict[str, Any]:
        """The medians of the turns, and how a turn stands to its neighbour, which met the same noise."""
        turns = cell["seconds"]
        pairs = zip(turns[self.divided], turns[self.by], strict=True)
        low, middle, high = statistics.quantiles([one / other for one, other in pairs], n=4)
        return {
            "ranks": ranks,
            "bytes": cell["bytes"],
            **{f"{value}_seconds": statistics.median(turns[value]) for value in self.values},
            "ratio": middle,
            "ratio_quartiles": [low, high],
        }

    def markdown(self, report: dict[str, Any]) -> str:
        rows = [
            f"| {cell['ranks']} | {size_name(cell['bytes'])} | "
            + " | ".join(duration(cell[f"{value}_seconds"]) for value in self.values)
            + f" | {cell['ratio']:.2f}x | {cell['ratio_quartiles'][0]:.2f} - {cell['ratio_quartiles'][1]:.2f} |"
            for cell in report["cells"]
        ]
        heading = f"| ranks | size | {' | '.join(self.values)} | {self.divided} / {self.by} | quartiles |"
        aligned = "| --: | --: |" + " --: |" * len(self.values) + " --: | --- |"
        return "\n".join([heading, aligned, *rows])
