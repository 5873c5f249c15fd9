"""What this rank has done: steps wait here until somebody is told of them, and are summed up for the end."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import nan
from typing import Any

from ringwide.training.progress import Progress, Step
from ringwide.training.traffic import Statistics, Traffic, traffic_of

RECENT_STEPS = 50


class Journal:
    def __init__(self, tell: Callable[[Any], None], statistics: Callable[[], Statistics]) -> None:
        self._tell, self._statistics = tell, statistics
        self._not_training = traffic_of(statistics())  # what was sent before it, or while it rested
        self._untold: list[Step] = []
        self._recent: deque[Step] = deque(maxlen=RECENT_STEPS)
        self.steps = self.batches = self.samples = 0

    def enter(self, step: Step, batches: int) -> None:
        self._untold.append(step)
        self._recent.append(step)
        self.steps += 1
        self.batches += batches
        self.samples += step.samples

    @property
    def loss(self) -> float:
        """The mean over this rank's samples of its last steps: one batch alone says little, an epoch is long ago.
        NaN if it had no samples."""
        samples = sum(step.samples for step in self._recent)
        return sum(step.loss * step.samples for step in self._recent) / samples if samples else nan

    def traffic(self) -> Traffic:
        """Of training alone."""
        return traffic_of(self._statistics()) - self._not_training

    @contextmanager
    def resting(self) -> Iterator[None]:
        """What is sent meanwhile is not of training."""
        before = self.traffic()
        try:
            yield
        finally:
            self._not_training = traffic_of(self._statistics()) - before

    def tell(self) -> None:
        if self._untold:
            traffic = self.traffic()
            self._tell(Progress(tuple(self._untold), traffic.bytes_sent, traffic.bytes_received))
            self._untold.clear()
