"""Not every step is worth a line."""

import time
from collections.abc import Callable

from ringwide.training.progress import Step


class Paced:
    """Pass on at most one step every so many seconds, and always the last."""

    def __init__(
        self, then: Callable[[Step], None], *, every_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._then, self._every, self._clock = then, every_seconds, clock
        self._due = clock()

    def __call__(self, step: Step) -> None:
        now = self._clock()
        if now >= self._due or step.number == step.total:
            self._due = now + self._every
            self._then(step)
