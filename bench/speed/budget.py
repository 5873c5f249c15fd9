"""A run that has only so much time makes fewer rounds, not fewer sizes or contestants."""

import time
from collections.abc import Callable, Sequence


class Budget:
    """Seconds for all numbers of ranks, shared out in proportion to them. Without any, there is time for everything."""

    def __init__(
        self, seconds: float | None, ranks: Sequence[int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds
        self._to_come = list(ranks)
        self._until = self._began_round = clock()

    def begin(self, ranks: int) -> None:
        """With this number of ranks; what those before have left over is shared as well."""
        now = self._clock()
        if self._end is not None:
            self._until = now + (self._end - now) * ranks / sum(self._to_come)
        self._to_come.remove(ranks)

    def begin_round(self) -> None:
        self._began_round = self._clock()

    def allows_another(self) -> bool:
        """A round as long as the last one."""
        now = self._clock()
        return self._end is None or now + (now - self._began_round) <= self._until
