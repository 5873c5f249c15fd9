"""What this rank has done: steps wait here until somebody is told of them, and are summed up for the end."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ringwide.training.progress import Progress, Step

RECENT_STEPS = 50


class Traffic(Protocol):
    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...


class Journal:
    def __init__(self, tell: Callable[[Any], None], traffic: Callable[[], Traffic]) -> None:
        self._tell, self._traffic = tell, traffic
        self._before = traffic()
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
        """The mean over this rank's samples of its last steps: one batch alone says little, an epoch is long ago."""
        samples = sum(step.samples for step in self._recent)
        return sum(step.loss * step.samples for step in self._recent) / max(samples, 1)

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received since training began."""
        now = self._traffic()
        return now.bytes_sent - self._before.bytes_sent, now.bytes_received - self._before.bytes_received

    def tell(self) -> None:
        if self._untold:
            self._tell(Progress(tuple(self._untold), *self.traffic()))
            self._untold.clear()
