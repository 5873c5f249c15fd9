"""Any number of steps in, a few hundred points out, in one pass and without keeping the steps.

Steps fall into bins. When there are too many bins, each two neighbours become one, and from then on bins are twice as
wide. Sums are kept, not means, so what comes out is what plain means over the same steps would be.
"""

import math
from dataclasses import dataclass, field

MAX_BINS = 400
FIRST_WIDTH_SECONDS = 1 / 64
STEPS_IN_A_BIN = 5  # of each node, at least: or the pace would jump between nothing and much


@dataclass(frozen=True, slots=True)
class Point:
    """Steps that are near each other: their mean loss, and the mean of the node with the lowest and the highest."""

    step: float
    mean: float
    low: float
    high: float
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Pace:
    start: float
    end: float
    steps_per_second: float  # of all nodes together


@dataclass(slots=True)
class _Bin:
    count: int = 0
    steps: int = 0
    learning_rate: float = 0.0
    losses: dict[int, tuple[float, int]] = field(default_factory=dict)  # of each node: the sum, and of how many

    def add_loss(self, node: int, total: float, count: int) -> None:
        before, counted = self.losses.get(node, (0.0, 0))
        self.losses[node] = before + total, counted + count

    def merge(self, other: "_Bin") -> None:
        self.count += other.count
        self.steps += other.steps
        self.learning_rate += other.learning_rate
        for node, (total, count) in other.losses.items():
            self.add_loss(node, total, count)

    def point(self) -> Point:
        means = [total / count for total, count in self.losses.values()] or [math.nan]
        total, count = sum(total for total, _ in self.losses.values()), sum(n for _, n in self.losses.values())
        mean = total / count if count else math.nan
        return Point(self.steps / self.count, mean, min(means), max(means), self.learning_rate / self.count)


@dataclass(slots=True)
class StepBins:
    """Bins of equally many steps."""

    width: int = 1
    bins: dict[int, _Bin] = field(default_factory=dict)

    def add(self, step: int, node: int, loss: float | None, learning_rate: float) -> None:
        found = self.bins.get(step // self.width) or self._new_bin(step)
        found.count += 1
        found.steps += step
        found.learning_rate += learning_rate
        if loss is not None:
            found.add_loss(node, loss, 1)

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
    """How many steps ended in each piece of time, all pieces equally long."""

    width: float = FIRST_WIDTH_SECONDS
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        index = int(seconds / self.width)
        self.counts[index] = self.counts.get(index, 0) + 1
        while len(self.counts) > MAX_BINS:
            self._widen()

    def pace(self, end: float, *, nodes: int) -> tuple[Pace, ...]:
        while max(self.counts, default=0) > 0 and self._steps_in_a_bin() < STEPS_IN_A_BIN * nodes:
            self._widen()
        pieces = [self._piece(index, end) for index in range(max(self.counts, default=-1) + 1)]
        # The last piece may have hardly begun when training ended: too short to tell a pace.
        return tuple(piece for piece in pieces if piece.end - piece.start > self.width / 2)

    def _steps_in_a_bin(self) -> float:
        return sum(self.counts.values()) / (max(self.counts) + 1)

    def _piece(self, index: int, end: float) -> Pace:
        start, until = index * self.width, min(end, (index + 1) * self.width)
        count = self.counts.get(index, 0)
        return Pace(start, until, count / (until - start) if until > start else 0.0)

    def _widen(self) -> None:
        narrow, self.counts = self.counts, {}
        self.width *= 2
        for index, count in narrow.items():
            self.counts[index // 2] = self.counts.get(index // 2, 0) + count
