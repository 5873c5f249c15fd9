"""The same training loop over ringwide and over gloo, in turns: `python -m bench training [--rounds 3] [--seconds 30]`.

Ten processes train the forerunner's small model with the settings of an experiment file, first over one and then over
the other, again and again. What a batch is, what is computed and what is recorded is the same code for both.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from bench.fleet import run_workers
from bench.machine import describe_machine
from ringwide.experiment.config import load_experiment

BEST = Path(__file__).parent.parent / "configs" / "forerunner" / "6-direct.yaml"
RESULT = Path(__file__).parent / "results" / "training.json"
FORERUNNER_BATCHES = 24_373  # its best generation, in 30 s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", nargs="?", type=Path, default=BEST, help="default: the forerunner's best")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="the length of a turn (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="write bench/results/training.json")


def run(options: argparse.Namespace) -> None:
    config = load_experiment(options.experiment)
    print(describe_machine())
    print(f"{config.nodes} processes, {options.experiment.name}, {options.seconds:g} s a turn", flush=True)
    task = {
        "ring": config.ring.model_dump(mode="json"),
        "training": config.training.model_dump(mode="json", exclude_unset=True) | {"seconds": options.seconds},
        "rounds": options.rounds,
    }
    timeout = 300 + 3 * options.rounds * options.seconds
    turns = run_workers("bench.training_worker", config.nodes, task, timeout_seconds=timeout)
    report = {
        "machine": describe_machine(),
        "experiment": options.experiment.name,
        "nodes": config.nodes,
        "seconds": options.seconds,
        "turns": turns,
    }
    print(f"\n{markdown(report)}")
    if options.save:
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


def markdown(report: dict[str, Any]) -> str:
    """Batches of all nodes in a turn: medians with the least and the most, and the ratio of neighbouring turns."""
    turns, heading = report["turns"], f"batches in {report['seconds']:g} s"
    rows = [
        f"| {name} | {_spread(turns[name], 'batches', ',.0f')} | {_spread(turns[name], 'loss', '.3f')} "
        f"| {_spread(turns[name], 'test_accuracy', '.1%')} |"
        for name in ("ringwide", "gloo")
    ]
    ratios = [
        ours["batches"] / theirs["batches"] for ours, theirs in zip(turns["ringwide"], turns["gloo"], strict=True)
    ]
    return "\n".join(
        [
            f"| {report['nodes']} nodes | {heading} | loss | held-out accuracy |",
            "| --- | --: | --: | --: |",
            *rows,
            f"| ringwide / gloo | **{statistics.median(ratios):.2f}x** [{min(ratios):.2f} - {max(ratios):.2f}] | | |",
        ]
    )


def _spread(turns: list[dict[str, float]], key: str, form: str) -> str:
    values = [turn[key] for turn in turns]
    return f"{statistics.median(values):{form}} [{min(values):{form}} - {max(values):{form}}]"
