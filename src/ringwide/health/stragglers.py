"""Stragglers: the rank that keeps the others waiting, and the reason, from observations while a collective waits.

A slow rank shows in one of three ways:
- it calls late: others have called a collective, and it has not;
- its links are slow: bytes to it and from it are stuck, while those of other ranks flow;
- it is far away: its answers take much longer than those of others.

Observations fade, so that one slow start does not count for ever.
"""

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

logger = logging.getLogger("ringwide.health")

WORTH_NAMING_SECONDS = 1.0
"""Shorter waits are not reported."""
HALVED_AFTER_SECONDS = 60.0
FAR_SECONDS, FAR_FACTOR = 0.1, 4
_CLEARLY = 1.4
"""Factor over the next rank: a rank with slow links has twice the share of each neighbour."""
_ROUND_TRIPS = 8

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A slow rank, the seconds that others have waited for it, and the reason."""

    rank: int
    seconds: float
    reason: str

    def __str__(self) -> str:
        return f"rank {self.rank} is slow: {self.reason}"


class FadingSeconds:
    """Seconds for each rank, with a half-life. `total` has all of them, `now` those that have not faded yet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.total: dict[int, float] = defaultdict(float)
        self._noted: dict[int, tuple[float, float]] = {}  # seconds, and when they were noted

    def add(self, rank: int, seconds: float) -> None:
        self.total[rank] += seconds
        self._noted[rank] = self._left(rank) + seconds, self._clock()

    def now(self) -> dict[int, float]:
        return {rank: self._left(rank) for rank in list(self._noted)}

    def _left(self, rank: int) -> float:
        seconds, at = self._noted.get(rank, (0.0, 0.0))
        return float(seconds * 0.5 ** ((self._clock() - at) / HALVED_AFTER_SECONDS))


class Stragglers:
    """Observations of one rank about all ranks, itself included, and its conclusion."""

    def __init__(self, rank: int, clock: Clock) -> None:
        self._rank = rank
        self.late = FadingSeconds(clock)
        self.stuck = FadingSeconds(clock)  # our bytes to a rank
        self.watched = FadingSeconds(clock)  # time of observation, under our own rank
        self._stuck_elsewhere: dict[
            int, tuple[int, float]
        ] = {}  # reported by others: the rank to which most of their bytes are stuck
        self._round_trips: dict[int, deque[float]] = {}
        self._reported: dict[int, float] = {}  # seconds at which a rank was last reported

    # -- observations

    def note_late(self, rank: int, seconds: float) -> None:
        self.late.add(rank, seconds)

    def note_stuck(self, rank: int, seconds: float) -> None:
        self.stuck.add(rank, seconds)

    def note_stuck_elsewhere(self, reporter: int, rank: int, seconds: float) -> None:
        self._stuck_elsewhere[reporter] = rank, seconds

    def note_round_trip(self, rank: int, seconds: float) -> None:
        self._round_trips.setdefault(rank, deque(maxlen=_ROUND_TRIPS)).append(seconds)

    # -- conclusions

    def most_stuck(self) -> tuple[int, float]:
        return max(self.stuck.now().items(), key=lambda item: item[1], default=(0, 0.0))

    def round_trip(self, rank: int) -> float | None:
        """The shortest of the last round trips: a longer one may be due to a busy core."""
        return min(list(self._round_trips.get(rank, ())), default=None)

    def verdict(self) -> SlowRank | None:
        """The slowest rank, if one clearly is. Distance explains stuck bytes, so it is considered first."""
        in_transit = list(self._far_away()) or list(self._with_slow_links())
        return max([*self._late(), *in_transit], key=lambda slow: slow.seconds, default=None)

    def _late(self) -> Iterator[SlowRank]:
        for rank, seconds in _clearly_first(self.late.now()):
            yield SlowRank(rank, seconds, f"others have waited {seconds:.1f} s for its calls")

    def _with_slow_links(self) -> Iterator[SlowRank]:
        """Each slow link counts for both its ends, so a rank with only slow links stands out."""
        ends: dict[int, float] = defaultdict(float)
        for reporter, (rank, seconds) in {**self._stuck_elsewhere, self._rank: self.most_stuck()}.items():
            ends[rank] += seconds
            ends[reporter] += seconds
        for rank, seconds in _clearly_first(ends):
            yield SlowRank(rank, seconds / 2, "bytes are stuck on their way to and from it")

    def _far_away(self) -> Iterator[SlowRank]:
        trips = {rank: trip for rank in list(self._round_trips) if (trip := self.round_trip(rank)) is not None}
        if len(trips) < 2:
            return
        rank, nearest = max(trips, key=trips.__getitem__), min(trips.values())
        if nearest >= FAR_SECONDS:
            return  # all are far away, or this machine is too busy to tell
        if trips[rank] >= max(FAR_SECONDS, FAR_FACTOR * nearest):
            reason = f"its answers take {trips[rank] * 1000:.0f} ms, those of the nearest rank {nearest * 1000:.1f} ms"
            yield SlowRank(rank, self.watched.now().get(self._rank, 0.0), reason)

    def report(self, seconds: float) -> None:
        """Note more seconds of waiting. Logs a slow rank when it is found, and whenever its seconds have doubled."""
        self.watched.add(self._rank, seconds)
        found = self.verdict()
        if found is not None and found.seconds >= 2 * self._reported.get(found.rank, WORTH_NAMING_SECONDS / 2):
            self._reported[found.rank] = found.seconds
            logger.warning("%s", found)


def _clearly_first(seconds: Mapping[int, float]) -> Iterator[tuple[int, float]]:
    """The rank with the most seconds, if they are worth naming and the next one has clearly fewer."""
    ranked = sorted(seconds.items(), key=lambda item: item[1], reverse=True)
    if not ranked or ranked[0][1] < WORTH_NAMING_SECONDS:
        return
    runner_up = ranked[1][1] if len(ranked) > 1 else 0.0
    if ranked[0][1] >= _CLEARLY * runner_up:
        yield ranked[0]
