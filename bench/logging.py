"""What logging costs: `python -m bench logging [--rounds 5] [--seconds 15]`.

Runs the forerunner's best file with each logging mode in turns, as a user does: the launcher, its view and its records
are part of it.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.machine import describe_machine
from bench.training import BEST

RESULT = Path(__file__).parent / "results" / "logging.json"
MODES = ("silent", "normal", "verbose")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="turns of each mode (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=15, help="the length of a turn (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="write bench/results/logging.json")


def run(options: argparse.Namespace) -> None:
    print(describe_machine())
    turns: dict[str, list[float]] = {mode: [] for mode in MODES}
    for number in range(options.rounds):
        for mode in MODES if number % 2 else MODES[::-1]:  # whoever is first is not always the same
            turns[mode].append(batches_per_second(mode, options.seconds))
        print(*(f"{mode} {found[-1]:,.0f} batches/s" for mode, found in turns.items()), flush=True)
    report = {"machine": describe_machine(), "seconds": options.seconds, "batches_per_second": turns}
    print(f"\n{markdown(report)}")
    if options.save:
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


def batches_per_second(mode: str, seconds: float) -> float:
    with TemporaryDirectory(prefix="bench-logging-") as directory:
        settings = {"logging": mode, "training.seconds": seconds, "report.directory": directory, "report.html": "false"}
        changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "ringwide", "run", str(BEST), *changes]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=300 + seconds)
        (results,) = Path(directory).glob("*/results.json")
        return float(json.loads(results.read_text())["totals"]["batches_per_second"])


def markdown(report: dict[str, Any]) -> str:
    turns = report["batches_per_second"]
    rows = [
        f"| {mode} | {statistics.median(turns[mode]):,.0f} [{min(turns[mode]):,.0f} - {max(turns[mode]):,.0f}] "
        f"| {_beside_silent(turns, mode)} |"
        for mode in MODES
    ]
    return "\n".join(["| logging | batches/s | beside silent |", "| --- | --: | --: |", *rows])


def _beside_silent(turns: dict[str, list[float]], mode: str) -> str:
    """The median over the rounds: neighbouring turns meet the same noise."""
    changes = [ours / silent - 1 for ours, silent in zip(turns[mode], turns["silent"], strict=True)]
    return f"{statistics.median(changes):+.1%}"
