"""Jobs on the virtual clock: done some time after they were handed in, reported some time after that, in any order."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ringwide.collectives.deadlines import Clock
from ringwide.compression.jobs import Job, Settle, Then

_REPORTED_AT_ONCE = 0.5


class SimulatedCodecPool:
    """What one rank encodes and decodes. `longest` is the time of the longest wait, in seconds."""

    def __init__(self, clock: Clock, chance: Callable[[], float], longest: float) -> None:
        self._clock, self._chance, self._longest = clock, chance, longest
        self.pending = 0

    def run(self, job: Job, then: Then) -> Settle:
        self.pending += 1
        self._later(partial(self._do, job, then))
        return _never_running

    def _do(self, job: Job, then: Then) -> None:
        result, failure = None, None
        try:
            result = job()
        except Exception as error:
            failure = error
        if self._chance() < _REPORTED_AT_ONCE:
            self._report(then, result, failure)
        else:
            self._later(partial(self._report, then, result, failure))

    def _report(self, then: Then, result: Any, failure: Exception | None) -> None:
        self.pending -= 1
        then(result, failure)

    def _later(self, event: Callable[[], None]) -> None:
        self._clock.call_later(self._longest * self._chance(), event)


def _never_running() -> None:
    """Jobs take no time: what takes time is to wait for them."""
