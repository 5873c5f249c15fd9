"""Metrics of a run from metrics.jsonl, reduced while reading to a few hundred points.

`StepBins` and `TimeBins` start narrow. When there are too many bins, they double their width and merge neighbours.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringwide.experiment.report.run_files import Figures, NodeResult, Run, number

METRICS = "metrics.jsonl"
MAX_BINS = 400
MAX_INTERVALS = 160
FIRST_WIDTH_SECONDS = 1 / 64
STEPS_PER_INTERVAL = 20  # of each node: with fewer, one more or less looks like a change of pace
FEW_INTERVALS = 8  # a short training is shown in coarse steps rather than not at all


@dataclass(frozen=True, slots=True)
class Point:
    """Bin of consecutive steps: the mean loss over their samples, and the lowest and highest mean of a node."""

    step: float
    seconds: float
    mean: float
    low: float
    high: float
    learning_rate: float
    gradient_norm: float | None = None  # None: not recorded, as without clip_norm


@dataclass(frozen=True, slots=True)
class Pace:
    """Steps per second in one interval of training time."""

    start: float
    end: float
    steps_per_second: float  # of all nodes together


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Evaluation on held-out samples."""

    step: int
    seconds: float
    loss: float | None
    accuracy: float | None


@dataclass(slots=True)
class NodeSteps:
    """Sums over all steps of one node."""

    steps_of_samples: dict[int, int] = field(default_factory=dict)  # number of steps by number of samples
    seconds: float = 0.0
    network_seconds: float = 0.0
    hidden_seconds: float = 0.0

    def figures(self, batch_size: int) -> Figures:
        """Figures as in a result of the node."""
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
    """Contents of metrics.jsonl."""

    points: tuple[Point, ...] = ()
    pace: tuple[Pace, ...] = ()
    evaluations: tuple[Evaluated, ...] = ()
    heard: Mapping[int, NodeSteps] = field(default_factory=dict)
    unreadable_lines: int = 0
    first_step_not_finite: int | None = None

    def nodes_without_result(self, run: Run) -> tuple[NodeResult, ...]:
        """Rows for ranks that left no result, from their steps. Some have nothing but the rank."""
        known = {rank: heard.figures(run.batch_size) for rank, heard in self.heard.items()}
        silent_too = run.status != "complete"  # else one node recorded itself alone
        shown = [rank for rank in run.missing if rank in known or silent_too]
        return tuple(NodeResult(rank, known.get(rank, {}), ended=False) for rank in shown)


def read_metrics(directory: Path) -> Metrics:
    """Metrics of a run, empty if there is no file: a run can fail before its first step."""
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


# -- reduction to bins


@dataclass(slots=True)
class _Bin:
    count: int = 0
    steps: int = 0
    seconds: float = 0.0
    learning_rate: float = 0.0
    gradient_norms: float = 0.0
    with_norm: int = 0
    losses: dict[int, tuple[float, int]] = field(default_factory=dict)  # by node: sum over samples, their number

    def add_loss(self, node: int, total: float, samples: int) -> None:
        before, counted = self.losses.get(node, (0.0, 0))
        self.losses[node] = before + total, counted + samples

    def merge(self, other: "_Bin") -> None:
        self.count += other.count
        self.steps += other.steps
        self.seconds += other.seconds
        self.learning_rate += other.learning_rate
        self.gradient_norms += other.gradient_norms
        self.with_norm += other.with_norm
        for node, (total, samples) in other.losses.items():
            self.add_loss(node, total, samples)

    def point(self) -> Point:
        means = [total / samples for total, samples in self.losses.values()] or [math.nan]
        total, samples = map(sum, zip(*self.losses.values(), strict=True)) if self.losses else (math.nan, 1)
        return Point(
            step=self.steps / self.count,
            seconds=self.seconds / self.count,
            mean=total / samples,
            low=min(means),
            high=max(means),
            learning_rate=self.learning_rate / self.count,
            gradient_norm=self.gradient_norms / self.with_norm if self.with_norm else None,
        )


@dataclass(slots=True)
class StepBins:
    """Bins with an equal number of steps."""

    width: int = 1
    bins: dict[int, _Bin] = field(default_factory=dict)

    def add(
        self,
        step: int,
        node: int,
        *,
        seconds: float,
        loss: float | None,
        samples: int,
        learning_rate: float,
        gradient_norm: float | None = None,
    ) -> None:
        found = self.bins.get(step // self.width) or self._new_bin(step)
        found.count += 1
        found.steps += step
        found.seconds += seconds
        found.learning_rate += learning_rate
        if gradient_norm is not None:
            found.gradient_norms += gradient_norm
            found.with_norm += 1
        if loss is not None:
            found.add_loss(node, loss * samples, samples)

    def points(self) -> tuple[Point, ...]:
        return tuple(found.point() for _, found in sorted(self.bins.items()))

    def _new_bin(self, step: int) -> _Bin:
        while len(self.bins) >= MAX_BINS:
            self._widen()
        return self.bins.setdefault(step // self.width, _Bin())

    def _widen(self) -> None:
        narrow, self.bins = self.bins, {}
        self.width *= 2
        for index, found in narrow.items():
            self.bins.setdefault(index // 2, _Bin()).merge(found)


@dataclass(slots=True)
class TimeBins:
    """Number of steps that ended in each interval of time, all of equal length."""

    width: float = FIRST_WIDTH_SECONDS
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        index = int(seconds / self.width)
        self.counts[index] = self.counts.get(index, 0) + 1
        while len(self.counts) > MAX_INTERVALS:
            self._widen()

    def pace(self, end: float, *, nodes: int) -> tuple[Pace, ...]:
        enough = max(2 * nodes, min(STEPS_PER_INTERVAL * nodes, sum(self.counts.values()) / FEW_INTERVALS))
        while max(self.counts, default=0) > 0 and self._steps_per_interval() < enough:
            self._widen()
        intervals = [self._interval(index, end) for index in range(max(self.counts, default=-1) + 1)]
        # The last interval may be too short to tell a pace.
        return tuple(each for each in intervals if each.end - each.start > self.width / 2)

    def _steps_per_interval(self) -> float:
        return sum(self.counts.values()) / (max(self.counts) + 1)

    def _interval(self, index: int, end: float) -> Pace:
        start, until = index * self.width, min(end, (index + 1) * self.width)
        count = self.counts.get(index, 0)
        return Pace(start, until, count / (until - start) if until > start else 0.0)

    def _widen(self) -> None:
        narrow, self.counts = self.counts, {}
        self.width *= 2
        for index, count in narrow.items():
            self.counts[index // 2] = self.counts.get(index // 2, 0) + count


@dataclass(slots=True)
class _Gathered:
    steps: StepBins = field(default_factory=StepBins)
    times: TimeBins = field(default_factory=TimeBins)
    evaluations: list[Evaluated] = field(default_factory=list)
    heard: dict[int, NodeSteps] = field(default_factory=dict)
    unreadable_lines: int = 0
    first_step_not_finite: int | None = None

    def add(self, line: dict[str, Any]) -> None:
        if line.get("evaluation"):
            loss, accuracy = number(line["loss"]), number(line.get("accuracy"))
            self.evaluations.append(Evaluated(int(line["step"]), float(line["seconds"]), loss, accuracy))
        else:
            self._add_step(line)

    def _add_step(self, line: dict[str, Any]) -> None:
        # All fields are parsed before anything is counted: a broken line must not count by half.
        node, step, seconds, loss = int(line["node"]), int(line["step"]), float(line["seconds"]), number(line["loss"])
        learning_rate, samples = float(line["learning_rate"]), int(line["samples"])
        network, hidden = float(line["network_seconds"]), float(line["hidden_seconds"])
        norm = number(line.get("gradient_norm"))
        self.times.add(seconds)
        if samples == 0:
            loss = None  # no samples left at the end of an epoch
        elif loss is None or not math.isfinite(loss):
            loss = None
            self.first_step_not_finite = min(step, self.first_step_not_finite or step)
        self.steps.add(
            step,
            node,
            seconds=seconds,
            loss=loss,
            samples=samples,
            learning_rate=learning_rate,
            gradient_norm=norm,
        )

        heard = self.heard.setdefault(node, NodeSteps())
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
