"""A clock that nobody waits for."""

from collections.abc import Callable
from heapq import heappop, heappush

_MOST_EVENTS = 300_000
"""A life that has more goes round in circles."""


class VirtualClock:
    """Runs events in the order of their times; those of the same time in the order in which they were made."""

    def __init__(self) -> None:
        self.now, self._made = 0.0, 0
        self._events: list[tuple[float, int, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object], /) -> None:
        self._made += 1
        heappush(self._events, (self.now + delay, self._made, callback))

    def call_at(self, when: float, callback: Callable[[], object], /) -> None:
        self._made += 1
        heappush(self._events, (when, self._made, callback))

    def run(self) -> int:
        """Run until nothing is left to happen; returns how much happened."""
        events = self._events
        while events:
            self.now, number, callback = heappop(events)
            callback()
            if number > _MOST_EVENTS:
                raise RuntimeError("the ring is busy for ever")
        return self._made
