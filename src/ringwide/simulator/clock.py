"""Virtual clock and weather: time and chance in one life of a ring."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from ringwide.simulator.calls import CodecSettings

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


# What time and chance do in one life.


@dataclass(frozen=True, slots=True)
class Weather:
    """How fast and how regular everything is."""

    latency: float  # the longest way of a byte, in seconds
    pause: float  # the longest wait of a caller between two calls
    taken_at_once: float  # the chance that the kernel takes a frame when it is sent, and not later
    split: float  # the chance that it takes only a part
    drowsy: float  # the chance that a rank reads what has come only later, perhaps with more behind it
    toil: float  # the longest wait of a codec's job, or of its result, in seconds
    capacity_bytes: int  # how much a connection holds that the other side has not read


def weather_by(chance: Random, codec_jobs: CodecSettings) -> Weather:
    latency = chance.choice((1e-4, 1e-2))
    return Weather(
        latency=latency,
        pause=latency * chance.choice((0.1, 3.0, 30.0)),
        taken_at_once=chance.choice((0.0, 0.7, 1.0)),
        split=chance.choice((0.0, 0.0, 0.0, 0.3)),
        drowsy=chance.choice((0.0, 0.0, 0.0, 0.4)),
        toil=latency * chance.choice((0.1, 1.0, 10.0)) if codec_jobs.encodes else 0.0,
        capacity_bytes=chance.choice((60, 500, 500, 1_000_000, 1_000_000)),
    )
