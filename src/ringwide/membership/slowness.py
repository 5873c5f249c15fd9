"""Which rank keeps the others waiting, and why: concluded from what is noted while a collective waits.

Three things can be seen of a slow rank, each on its own:
- it calls late: others have called a collective, it has not;
- its links are slow: bytes are stuck on the way to it and from it, while those of other ranks flow;
- it is far away: its answers take much longer than those of others.
"""

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

logger = logging.getLogger("ringwide.membership")

WORTH_NAMING_SECONDS = 1.0
"""Shorter waits are nobody's fault."""
FAR_SECONDS, FAR_FACTOR = 0.1, 4
_CLEARLY = 1.4
"""So much more than the next one: a rank whose links are slow has twice the share of each neighbour."""
_ROUND_TRIPS = 8


@dataclass(frozen=True, slots=True)
class SlowRank:
    """Who is slow, how many seconds of waiting show it, and how."""

    rank: int
    seconds: float
    reason: str

    def __str__(self) -> str:
        return f"rank {self.rank} is slow: {self.reason}"


class Slowness:
    """What one rank has noted about the others, itself included."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.late: dict[int, float] = defaultdict(float)
        self.stuck: dict[int, float] = defaultdict(float)  # our bytes on their way to a rank
        self._told: dict[int, tuple[int, float]] = {}  # by others: to whom most of their bytes were stuck
        self._round_trips: dict[int, deque[float]] = {}
        self._watched = 0.0
        self._reported: dict[int, float] = {}  # at how many seconds a rank was last named

    # -- what is noted

    def note_late(self, rank: int, seconds: float) -> None:
        self.late[rank] += seconds

    def note_stuck(self, rank: int, seconds: float) -> None:
        self.stuck[rank] += seconds

    def hear_stuck(self, teller: int, rank: int, seconds: float) -> None:
        self._told[teller] = rank, seconds

    def note_round_trip(self, rank: int, seconds: float) -> None:
        self._round_trips.setdefault(rank, deque(maxlen=_ROUND_TRIPS)).append(seconds)

    # -- what follows

    def most_stuck(self) -> tuple[int, float]:
        return max(self.stuck.items(), key=lambda item: item[1], default=(0, 0.0))

    def round_trip(self, rank: int) -> float | None:
        """The shortest of late: a longer one may be due to a busy core."""
        return min(self._round_trips.get(rank, ()), default=None)

    def verdict(self) -> SlowRank | None:
        return next(self._verdicts(), None)

    def _verdicts(self) -> Iterator[SlowRank]:
        yield from _clearly_first(self.late, lambda seconds: f"others have waited {seconds:.1f} s for its calls")
        yield from _clearly_first(self._stuck_by_rank(), lambda _: "bytes are stuck on their way to and from it")
        yield from self._far_away()

    def _stuck_by_rank(self) -> dict[int, float]:
        """A slow link has two ends; a rank of which all links are slow is an end of each."""
        ends: dict[int, float] = defaultdict(float)
        for teller, (rank, seconds) in {**self._told, self._rank: self.most_stuck()}.items():
            ends[rank] += seconds
            ends[teller] += seconds
        return ends

    def _far_away(self) -> Iterator[SlowRank]:
        trips = {rank: min(seconds) for rank, seconds in list(self._round_trips.items())}
        if len(trips) < 2:
            return
        rank = max(trips, key=lambda rank: trips[rank])
        nearest = min(trips.values())
        if trips[rank] >= max(FAR_SECONDS, FAR_FACTOR * nearest):
            reason = f"its answers take {trips[rank] * 1000:.0f} ms, those of the nearest rank {nearest * 1000:.1f} ms"
            yield SlowRank(rank, self._watched, reason)

    def report(self, seconds: float) -> None:
        """After so many more seconds of waiting: a line when a rank is found to be slow, and whenever it cost twice."""
        self._watched += seconds
        found = self.verdict()
        if found is not None and found.seconds >= 2 * self._reported.get(found.rank, WORTH_NAMING_SECONDS / 2):
            self._reported[found.rank] = found.seconds
            logger.warning("%s", found)


def _clearly_first(seconds: dict[int, float], reason: Callable[[float], str]) -> Iterator[SlowRank]:
    """The rank with the most seconds, if they are worth naming and the next one has clearly fewer."""
    ranked = sorted(seconds.items(), key=lambda item: item[1], reverse=True)
    if not ranked or ranked[0][1] < WORTH_NAMING_SECONDS:
        return
    runner_up = ranked[1][1] if len(ranked) > 1 else 0.0
    if ranked[0][1] >= _CLEARLY * runner_up:
        yield SlowRank(ranked[0][0], ranked[0][1], reason(ranked[0][1]))
