"""What one rank has told so far, summed up as it comes: a run may have a hundred thousand steps."""

import math
from collections import deque
from dataclasses import dataclass

from ringwide.training.progress import Progress, TrainingStep

RECENT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Sums:
    """What was done in some time: since training began, or between two moments."""

    seconds: float = 0.0
    batches: int = 0
    samples: int = 0
    loss: float = 0.0  # summed over samples
    network_seconds: float = 0.0
    hidden_seconds: float = 0.0
    bytes_sent: int = 0

    def __sub__(self, before: "Sums") -> "Sums":
        return Sums(
            seconds=self.seconds - before.seconds,
            batches=self.batches - before.batches,
            samples=self.samples - before.samples,
            loss=self.loss - before.loss,
            network_seconds=self.network_seconds - before.network_seconds,
            hidden_seconds=self.hidden_seconds - before.hidden_seconds,
            bytes_sent=self.bytes_sent - before.bytes_sent,
        )

    @property
    def batches_per_second(self) -> float:
        return _ratio(self.batches, self.seconds)

    @property
    def throughput(self) -> float:
        return _ratio(self.bytes_sent, self.seconds)

    @property
    def network_share(self) -> float:
        return _ratio(self.network_seconds, self.seconds)

    @property
    def hidden_share(self) -> float:
        return _ratio(self.hidden_seconds, self.network_seconds)

    @property
    def mean_loss(self) -> float:
        return self.loss / self.samples if self.samples else math.nan


class Tally:
    def __init__(self, batch_size: int) -> None:
        self.last: TrainingStep | None = None
        self._batch_size = batch_size
        self._marks = deque([Sums()])  # of the last seconds, the oldest first

    @property
    def sums(self) -> Sums:
        return self._marks[-1]

    def add(self, progress: Progress) -> None:
        if not progress.steps:
            return
        self.last = progress.steps[-1]
        self._marks.append(self._with(progress))
        while self._marks[1].seconds <= self.sums.seconds - RECENT_SECONDS:
            self._marks.popleft()

    def recent(self) -> Sums:
        """Of the last seconds: what a person watching wants to know."""
        return self.sums - self._marks[0]

    def _with(self, progress: Progress) -> Sums:
        sums, steps = self.sums, progress.steps
        return Sums(
            seconds=steps[-1].seconds,
            batches=sums.batches + sum(self._batches(step) for step in steps),
            samples=sums.samples + sum(step.samples for step in steps),
            loss=sums.loss + sum(_loss(step) for step in steps),
            network_seconds=sums.network_seconds + sum(step.network_seconds for step in steps),
            hidden_seconds=sums.hidden_seconds + sum(step.hidden_seconds for step in steps),
            bytes_sent=progress.bytes_sent,
        )

    def _batches(self, step: TrainingStep) -> int:
        return max(1, -(-step.samples // self._batch_size))


def _loss(step: TrainingStep) -> float:
    """Summed over samples. A share at the tail of an epoch may be empty; its mean is no number."""
    return step.loss * step.samples if step.samples else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
