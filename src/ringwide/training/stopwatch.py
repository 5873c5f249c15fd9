"""Time spent on training alone: it rests while the model is evaluated or saved."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._before = clock, 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._since is None else self._clock() - self._since)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._since = self._clock()
        try:
            yield
        finally:
            self._before, self._since = self.seconds, None

    @contextmanager
    def resting(self) -> Iterator[None]:
        self._before, self._since = self.seconds, None
        try:
            yield
        finally:
            self._since = self._clock()
