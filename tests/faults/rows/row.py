"""What a row of the table is."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.faults.outcome import Bar, Run
from tests.faults.stage import Stage

MIB = 1024 * 1024
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Terms:
    """What the runs of a row may be given: the promise is the same, a test has less time."""

    suspect_after_seconds: float = 10.0
    warn_after_seconds: float = 10.0
    timeout_seconds: float = 12.0
    step_seconds: float = 3.0
    slow_megabytes: int = 4
    slow_seconds: float = 6.0  # of collectives with a slow rank, before it must have been named
    megabytes: int = 64
    sizes: tuple[int, ...] = (2, 3, 4, 8)
    damaged_frames: int = 100  # of one run
    strangers: int = 10_000
    strangers_at_a_time: int = 400
    strangers_nice: int = 10  # so that only what they do to the ring is measured; on a busy machine they would starve
    patience_seconds: float = 120.0  # with a rank that may hang
    window_seconds: float = 5.0  # with strangers, and without them


Play = Callable[[Stage, Run, random.Random, Terms], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Row:
    """One fault: how often it is tried, how many runs at a time, and how to bring it about once."""

    name: str
    promise: str
    runs: int
    play: Play
    jobs: int = 1
    bars: Callable[[Terms], tuple[Bar, ...]] = lambda _: ()
