"""Made-up messages of nodes, and a terminal to show them on."""

import io
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ringwide.experiment.config import ExperimentConfig
from ringwide.training.progress import Progress, Result, TrainingPlan, TrainingStep


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def config(**keys: Any) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"name": "t", "nodes": 2, **keys})


def plan(**changes: Any) -> TrainingPlan:
    return replace(
        TrainingPlan(
            parameters=10,
            gradient_bytes=40,
            buckets=1,
            overlapped=False,
            samples=100,
            test_samples=20,
            steps_per_epoch=5,
            first_step=1,
            last_step=10,
            seconds=None,
        ),
        **changes,
    )


def step(number: int = 1, **changes: Any) -> TrainingStep:
    return replace(
        TrainingStep(
            number=number,
            epoch=0,
            seconds=number * 0.5,
            loss=0.5,
            samples=16,
            learning_rate=0.1,
            network_seconds=0.125,
            hidden_seconds=0.0,
        ),
        **changes,
    )


def progress(*steps: TrainingStep, sent: int = 0) -> Progress:
    return Progress(steps=steps, bytes_sent=sent, bytes_received=sent)


def steps(numbers: Iterable[int], **changes: Any) -> Progress:
    return progress(*(step(number, **changes) for number in numbers))


def result(**changes: Any) -> Result:
    return replace(
        Result(
            steps=10,
            batches=10,
            epochs=2.0,
            samples=160,
            loss=0.25,
            test_loss=0.5,
            test_accuracy=0.975,
            seconds=4.0,
            network_seconds=1.0,
            hidden_seconds=0.5,
            bytes_sent=4000,
            bytes_received=4000,
            fingerprint="aa",
        ),
        **changes,
    )
