"""What a rank runs on: it may stop for a while, or for ever."""

from collections.abc import Callable
from functools import partial
from random import Random

from ringwide.simulator.clock import VirtualClock

Event = Callable[[], object]


class Host:
    """The process of one rank. What should happen there waits while it is frozen, and never happens to the dead.

    One that computes is frozen to its own events, but it answers: it is not silent.
    """

    __slots__ = ("_clock", "_deferred", "_freezes", "_order", "_silences", "alive", "frozen")

    def __init__(self, clock: VirtualClock, order: Random) -> None:
        self._clock, self._order = clock, order
        self._deferred: list[Event] = []
        self.alive, self.frozen = True, False
        self._freezes = self._silences = 0

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

    @property
    def silent(self) -> bool:
        return self._silences > 0

    def freeze(self, *, computing: bool = False) -> None:
        self._freezes += 1
        self._silences += not computing
        self.frozen = True

    def thaw(self, *, computing: bool = False) -> None:
        """All that waited happens at once, in any order, as when an event loop finds many things ready."""
        self._freezes -= 1
        self._silences -= not computing
        if self._freezes:
            return
        self.frozen = False
        deferred, self._deferred = self._deferred, []
        self._order.shuffle(deferred)
        for event in deferred:
            self.call_later(0.0, event)
