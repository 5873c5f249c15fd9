"""Any number of steps in, a few hundred points out, in one pass and without keeping the steps.

Steps fall into bins. When there are too many bins, each two neighbours become one, and from then on bins are twice as
wide. Sums are kept, not means, so what comes out is what plain means over the same steps would be.
"""

import math
from dataclasses import dataclass, field

MAX_BINS = 400
MAX_PIECES = 160  # of time
FIRST_WIDTH_SECONDS = 1 / 64
STEPS_IN_A_PIECE = 20  # of each node: with few, one more or less looks like a change of pace
FEW_PIECES = 8  # a short training is better seen in jumps than not at all


@dataclass(frozen=True, slots=True)
class Point:
    """Steps near each other: the mean loss of their samples, and the means of the lowest and the highest node."""

    step: float
    seconds: float
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
    seconds: float = 0.0
    learning_rate: float = 0.0
    losses: dict[int, tuple[float, int]] = field(
        default_factory=dict
    )  # of each node: the sum over samples, and how many

    def add_loss(self, node: int, total: float, samples: int) -> None:
        before, counted = self.losses.get(node, (0.0, 0))
        self.losses[node] = before + total, counted + samples

    def merge(self, other: "_Bin") -> None:
        self.count += other.count
        self.steps += other.steps
        self.seconds += other.seconds
        self.learning_rate += other.learning_rate
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
        )


@dataclass(slots=True)
class StepBins:
    """Bins of equally many steps."""

    width: int = 1
    bins: dict[int, _Bin] = field(default_factory=dict)

    def add(
        self, step: int, node: int, *, seconds: float, loss: float | None, samples: int, learning_rate: float
    ) -> None:
        found = self.bins.get(step // self.width) or self._new_bin(step)
        found.count += 1
        found.steps += step
        found.seconds += seconds
        found.learning_rate += learning_rate
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
    """How many steps ended in each piece of time, all pieces equally long."""

    width: float = FIRST_WIDTH_SECONDS
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        index = int(seconds / self.width)
        self.counts[index] = self.counts.get(index, 0) + 1
        while len(self.counts) > MAX_PIECES:
            self._widen()

    def pace(self, end: float, *, nodes: int) -> tuple[Pace, ...]:
        enough = max(2 * nodes, min(STEPS_IN_A_PIECE * nodes, sum(self.counts.values()) / FEW_PIECES))
        while max(self.counts, default=0) > 0 and self._steps_in_a_piece() < enough:
            self._widen()
        pieces = [self._piece(index, end) for index in range(max(self.counts, default=-1) + 1)]
        # The last piece may have hardly begun when training ended: too short to tell a pace.
        return tuple(piece for piece in pieces if piece.end - piece.start > self.width / 2)

    def _steps_in_a_piece(self) -> float:
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
