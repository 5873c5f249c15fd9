"""Run directories as a launcher leaves them, with figures that are easy to check."""

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringwide.experiment.config import ExperimentConfig
from ringwide.training.progress import Result, TrainingPlan

DERIVED = ("steps_per_second", "batches_per_second", "throughput", "network_share", "hidden_share", "codec_share")
SUMMED = ("batches", "samples", "bytes_sent", "bytes_received", "memory_bytes", "torch_memory_bytes")
VERSIONS = {"ringwide": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.6"}
MACHINE = {"cpu": "A Processor <at> 2.4 GHz", "cores": 2, "memory_bytes": 24_000_000_000, "system": "Linux 6.1"}
PLAN = TrainingPlan(
    parameters=1290,
    gradient_bytes=5160,
    buckets=1,
    overlapped=False,
    samples=20_000,
    test_samples=2_000,
    steps_per_epoch=32,
    first_step=1,
    last_step=None,
    seconds=30.0,
)


def made_config(**changes: Any) -> dict[str, Any]:
    """A resolved configuration; `changes` are blocks as one would write them."""
    written = {"name": "six", "nodes": 3, "training": {"model": "linear", "data": "clusters", "seconds": 30}, **changes}
    return ExperimentConfig.model_validate(written).model_dump(mode="json")


def made_result(rank: int = 0, **changes: Any) -> Result:
    figures: dict[str, Any] = {
        "steps": 1000,
        "batches": 1000,
        "epochs": 31.25,
        "samples": 8000,
        "loss": 0.5 + rank / 100,
        "test_loss": 0.55,
        "test_accuracy": 0.875,
        "seconds": 10.0,
        "network_seconds": 4.0 + rank,
        "hidden_seconds": 1.0,
        "bytes_sent": 20_000_000,
        "bytes_received": 20_000_000,
        "fingerprint": "0123456789abcdef",
        "peak_memory_bytes": 210_000_000,
        "memory_bytes": 90_000_000,
        "torch_memory_bytes": 60_000_000,
    }
    return Result(**{**figures, **changes})


def node_entry(rank: int, result: Result) -> dict[str, Any]:
    return {"rank": rank, **asdict(result), **{name: getattr(result, name) for name in DERIVED}}


def made_results(results: Mapping[int, Result] | None = None, **changes: Any) -> dict[str, Any]:
    """The content of results.json; totals are those of the results given."""
    if results is None:
        results = {rank: made_result(rank) for rank in range(3)}
    return {
        "format": 1,
        "name": "six",
        "status": "complete",
        "reason": "",
        "started": "2026-11-16T07:40:12+00:00",
        "seconds": 14.5,
        "label": "",
        "config": made_config(),
        "versions": VERSIONS,
        "machine": MACHINE,
        "plan": asdict(PLAN),
        "nodes": [node_entry(rank, result) for rank, result in results.items()],
        "totals": _totals(list(results.values())),
        "spread": {},
        **changes,
    }


def _totals(results: Sequence[Result]) -> dict[str, Any]:
    if not results:
        return {}
    totals: dict[str, Any] = {key: sum(getattr(result, key) for result in results) for key in SUMMED}
    totals["batches_per_second"] = sum(result.batches_per_second for result in results)
    totals["throughput"] = sum(result.throughput for result in results)
    totals["peak_memory_bytes"] = sum(result.peak_memory_bytes for result in results)
    totals["compression_ratio"] = results[0].compression_ratio
    totals["loss"] = sum(result.loss for result in results) / len(results)
    return {**totals, "test_loss": results[0].test_loss, "test_accuracy": results[0].test_accuracy}


def step_line(node: int, step: int, **changes: Any) -> dict[str, Any]:
    line = {"node": node, "step": step, "epoch": step // 32, "seconds": step / 100, "loss": 1 / step, "samples": 8}
    return {**line, "learning_rate": 0.1, "network_seconds": 0.004, "hidden_seconds": 0.001, **changes}


def evaluation_line(step: int, **changes: Any) -> dict[str, Any]:
    return {"evaluation": True, "step": step, "seconds": step / 100, "loss": 0.5, "accuracy": 0.875, **changes}


def made_steps(nodes: int = 3, steps: int = 200, *, seed: int = 0, **changes: Any) -> Iterable[dict[str, Any]]:
    """A training that goes well, in the order in which nodes tell it: each a stretch of steps at a time."""
    chance = random.Random(seed)
    for first in range(1, steps + 1, 50):
        for node in range(nodes):
            for step in range(first, min(first + 50, steps + 1)):
                loss = 0.4 + 1.9 * math.exp(-step / (steps / 5)) + chance.gauss(0, 0.12)
                yield step_line(node, step, loss=max(loss, 0.01), **changes)
        yield evaluation_line(first, loss=0.45 + 1.9 * math.exp(-first / (steps / 5)), accuracy=0.9 - 0.8 / first)


def write_run(
    directory: Path, results: Mapping[str, Any] | None = None, lines: Iterable[Mapping[str, Any]] | None = None
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(made_results() if results is None else results))
    with (directory / "metrics.jsonl").open("w") as out:
        out.writelines(f"{json.dumps(line)}\n" for line in (made_steps() if lines is None else lines))
    return directory


def write_sweep(directory: Path, runs: Mapping[str, Mapping[str, Any]], **changes: Any) -> Path:
    """A sweep over codecs: the name of each variant's directory, and its results."""
    for name, results in runs.items():
        write_run(directory / name, results, made_steps(steps=200, seed=len(name)))
    document = {
        "format": 1,
        "name": "compression",
        "status": "complete",
        "reason": "",
        "started": "2026-11-16T07:40:12+00:00",
        "seconds": 60.0,
        "sweep": {"ring.codec": [name.partition("=")[2] for name in runs]},
        "runs": list(runs),
        **changes,
    }
    (directory / "results.json").write_text(json.dumps(document))
    return directory


def codec_variants(*codecs: str) -> dict[str, dict[str, Any]]:
    variants = {}
    for number, codec in enumerate(codecs, start=1):
        result = {
            "compression_ratio": 1.0 if codec == "none" else 1.5,
            "codec_seconds": 0.0 if codec == "none" else 1.2,
        }
        made = {
            rank: made_result(rank, batches=1000 - 100 * number, loss=0.5 - number / 50, **result) for rank in range(3)
        }
        variants[f"{number:02}-codec={codec}"] = made_results(
            made,
            name="compression",
            label=f"codec={codec}",
            config=made_config(name="compression", ring={"codec": codec}),
        )
    return variants
