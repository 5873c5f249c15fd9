"""What a rank runs on: it may stop for a while, or for ever."""

from collections.abc import Callable
from functools import partial
from random import Random

from ringwide.simulator.clock import VirtualClock

Event = Callable[[], object]


class Host:
    """The process of one rank. What should happen there waits while it is frozen, and never happens to the dead."""

    __slots__ = ("_clock", "_deferred", "_freezes", "_order", "alive", "frozen")

    def __init__(self, clock: VirtualClock, order: Random) -> None:
        self._clock, self._order = clock, order
        self._deferred: list[Event] = []
        self.alive, self.frozen = True, False
        self._freezes = 0

    def time(self) -> float:
        return self._clock.now

    def call_later(self, delay: float, callback: Event, /) -> None:
        self._clock.call_later(delay, partial(self.run, callback))

    def call_at(self, when: float, callback: Event, /) -> None:
        self._clock.call_at(when, partial(self.run, callback))

    def run(self, event: Event) -> None:
        if self.frozen:
            self._deferred.append(event)
        elif self.alive:
            event()

    def defer(self, event: Event) -> None:
        self._deferred.append(event)

    def freeze(self) -> None:
        self._freezes += 1
        self.frozen = True

    def thaw(self) -> None:
        """All that waited happens at once, in any order, as when an event loop finds many things ready."""
        self._freezes -= 1
        if self._freezes:
            return
        self.frozen = False
        deferred, self._deferred = self._deferred, []
        self._order.shuffle(deferred)
        for event in deferred:
            self.call_later(0.0, event)
