"""Hosts of the simulated ranks, which may freeze or die, the virtual clock, and the network conditions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random

from ringwide.simulator.calls import CodecSettings

_MOST_EVENTS = 300_000
"""A life with more events never ends."""


class VirtualClock:
    """Clock that runs events in the order of their times, and of their creation where the times are equal."""

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
        """Run until no event is left; returns how many there were."""
        events = self._events
        while events:
            self.now, number, callback = heappop(events)
            callback()
            if number > _MOST_EVENTS:
                raise RuntimeError("the ring is busy for ever")
        return self._made


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of one life: how fast and how regular everything is."""

    latency: float  # longest time of a byte on the network, in seconds
    pause: float  # longest wait of a caller between two calls
    taken_at_once: float  # probability that the kernel takes a frame at once
    split: float  # probability that it takes only a part
    late_read: float  # probability that a rank reads later, perhaps with more to read
    codec_delay: float  # longest wait for a codec's job, or for its result, in seconds
    capacity_bytes: int  # bytes a connection holds that the other side has not read


def draw_conditions(rng: Random, codec_settings: CodecSettings) -> Conditions:
    latency = rng.choice((1e-4, 1e-2))
    return Conditions(
        latency=latency,
        pause=latency * rng.choice((0.1, 3.0, 30.0)),
        taken_at_once=rng.choice((0.0, 0.7, 1.0)),
        split=rng.choice((0.0, 0.0, 0.0, 0.3)),
        late_read=rng.choice((0.0, 0.0, 0.0, 0.4)),
        codec_delay=latency * rng.choice((0.1, 1.0, 10.0)) if codec_settings.encodes else 0.0,
        capacity_bytes=rng.choice((60, 500, 500, 1_000_000, 1_000_000)),
    )


Event = Callable[[], object]


class Host:
    """Process of one rank. Its events wait while it is frozen, and are dropped when it is dead.

    A rank that computes is frozen too, but still answers heartbeats: it is not silent.
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
        """Run all that waited at once, in any order, as an event loop does that finds many handles ready."""
        self._freezes -= 1
        self._silences -= not computing
        if self._freezes:
            return
        self.frozen = False
        deferred, self._deferred = self._deferred, []
        self._order.shuffle(deferred)
        for event in deferred:
            self.call_later(0.0, event)
