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

    steps_of_samples: dict[int, int] = field(default_factory=dict)  # for each size that occurs, how many
    seconds: float = 0.0
    network_seconds: float = 0.0
    hidden_seconds: float = 0.0

    def figures(self, batch_size: int) -> Figures:
        """As a result would tell them."""
        batches = sum(steps * max(1, -(-size // batch_size)) for size, steps in self.steps_of_samples.items())
        return {
            "steps": sum(self.steps_of_samples.values()),
            "batches": batches,
            "samples": sum(size * steps for size, steps in self.steps_of_samples.items()),
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
        """Rows for ranks that left no result, from the steps they told of. Of some there is nothing but the rank."""
        known = {rank: heard.figures(run.batch_size) for rank, heard in self.heard.items()}
        silent_too = run.status != "complete"  # else it is the run of one node, which knows of no other
        shown = [rank for rank in run.missing if rank in known or silent_too]
        return tuple(Node(rank, known.get(rank, {}), ended=False) for rank in shown)


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
            loss, accuracy = number(line["loss"]), number(line.get("accuracy"))
            self.evaluations.append(Evaluated(int(line["step"]), float(line["seconds"]), loss, accuracy))
        else:
            self._add_step(line)

    def _add_step(self, line: dict[str, Any]) -> None:
        # Everything is looked at before anything is counted: a broken line must not count by half.
        node, step, seconds, loss = int(line["node"]), int(line["step"]), float(line["seconds"]), number(line["loss"])
        learning_rate, samples = float(line["learning_rate"]), int(line["samples"])
        network, hidden = float(line["network_seconds"]), float(line["hidden_seconds"])
        self.times.add(seconds)
        if samples == 0:
            loss = None  # an empty share at the tail of an epoch: the mean of nothing
        elif loss is None or not math.isfinite(loss):
            loss = None
            self.first_step_not_finite = min(step, self.first_step_not_finite or step)
        self.steps.add(step, node, seconds=seconds, loss=loss, samples=samples, learning_rate=learning_rate)

        heard = self.heard.setdefault(node, Heard())
        heard.steps_of_samples[samples] = heard.steps_of_samples.get(samples, 0) + 1
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
