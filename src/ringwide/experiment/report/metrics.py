"""What metrics.jsonl tells, in a few hundred points; how it gets so short is the matter of `thinning`."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringwide.experiment.report.reading import Figures, Node, Run, number
from ringwide.experiment.report.thinning import Pace, Point, StepBins, TimeBins

METRICS = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class Evaluated:
    step: int
    seconds: float
    loss: float | None
    accuracy: float | None


@dataclass(slots=True)
class Heard:
    """What one node told in all its steps."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    network_seconds: float = 0.0
    hidden_seconds: float = 0.0

    def figures(self, batches_per_step: int) -> Figures:
        batches = self.steps * batches_per_step
        return {
            "steps": self.steps,
            "batches": batches,
            "samples": self.samples,
            "seconds": self.seconds,
            "network_seconds": self.network_seconds,
            "hidden_seconds": self.hidden_seconds,
            "batches_per_second": batches / self.seconds if self.seconds else None,
            "network_share": self.network_seconds / self.seconds if self.seconds else None,
            "hidden_share": self.hidden_seconds / self.network_seconds if self.network_seconds else None,
        }


@dataclass(frozen=True, slots=True)
class Metrics:
    points: tuple[Point, ...] = ()
    pace: tuple[Pace, ...] = ()
    evaluations: tuple[Evaluated, ...] = ()
    heard: Mapping[int, Heard] = field(default_factory=dict)
    unreadable_lines: int = 0
    first_step_not_finite: int | None = None

    def nodes_without_result(self, run: Run) -> tuple[Node, ...]:
        """Rows for ranks that left no result, from the steps they told of."""
        heard = ((rank, self.heard.get(rank, Heard())) for rank in run.missing)
        return tuple(Node(rank, told.figures(run.batches_per_step), ended=False) for rank, told in heard)


def read_metrics(directory: Path) -> Metrics:
    """Nothing if there is no file: a run can fail before its first step."""
    try:
        with (directory / METRICS).open(encoding="utf-8", errors="replace") as lines:
            return read_lines(lines)
    except FileNotFoundError:
        return Metrics()


def read_lines(lines: Iterable[str]) -> Metrics:
    gathered = _Gathered()
    for line in lines:
        try:
            gathered.add(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
            gathered.unreadable_lines += 1  # the last line of a run that was killed, for example
    return gathered.metrics()


@dataclass(slots=True)
class _Gathered:
    steps: StepBins = field(default_factory=StepBins)
    times: TimeBins = field(default_factory=TimeBins)
    evaluations: list[Evaluated] = field(default_factory=list)
    heard: dict[int, Heard] = field(default_factory=dict)
    unreadable_lines: int = 0
    first_step_not_finite: int | None = None

    def add(self, line: dict[str, Any]) -> None:
        if line.get("evaluation"):
            loss, accuracy = number(line["loss"]), number(line["accuracy"])
            self.evaluations.append(Evaluated(int(line["step"]), float(line["seconds"]), loss, accuracy))
        else:
            self._add_step(line)

    def _add_step(self, line: dict[str, Any]) -> None:
        # Everything is looked at before anything is counted: a broken line must not count by half.
        node, step, seconds, loss = int(line["node"]), int(line["step"]), float(line["seconds"]), number(line["loss"])
        learning_rate, samples = float(line["learning_rate"]), int(line["samples"])
        network, hidden = float(line["network_seconds"]), float(line["hidden_seconds"])
        self.times.add(seconds)
        if loss is None or not math.isfinite(loss):
            loss = None
            self.first_step_not_finite = min(step, self.first_step_not_finite or step)
        self.steps.add(step, node, loss, learning_rate)

        heard = self.heard.setdefault(node, Heard())
        heard.steps += 1
        heard.samples += samples
        heard.seconds = max(heard.seconds, seconds)
        heard.network_seconds += network
        heard.hidden_seconds += hidden

    def metrics(self) -> Metrics:
        end = max((heard.seconds for heard in self.heard.values()), default=0.0)
        return Metrics(
            points=self.steps.points(),
            pace=self.times.pace(end, nodes=len(self.heard)),
            evaluations=tuple(sorted(self.evaluations, key=lambda evaluated: evaluated.step)),
            heard=dict(sorted(self.heard.items())),
            unreadable_lines=self.unreadable_lines,
            first_step_not_finite=self.first_step_not_finite,
        )
