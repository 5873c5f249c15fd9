"""Many seeds, on several cores."""

import gc
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ringwide.simulator.life import simulate

_BATCH = 100


class Trial(Protocol):
    """What became of one seed."""

    @property
    def seed(self) -> int: ...

    @property
    def problems(self) -> tuple[str, ...]: ...

    @property
    def events(self) -> int: ...

    @property
    def story(self) -> str:
        """What the seed means, for people."""
        ...


Try = Callable[[int], Trial]
"""try(seed): in any process, so it must be a function that a module has."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of some seeds: how many there were, and all that is wrong."""

    seeds: int
    events: int
    failing: tuple[Trial, ...]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def try_seeds(first: int, count: int, *, jobs: int, try_one: Try | None = None) -> Iterator[Tried]:
    """Try `count` seeds, batch by batch. By default each is a whole life of a ring."""
    try_batch = partial(_try_batch, try_one)
    batches = [range(start, min(start + _BATCH, first + count)) for start in range(first, first + count, _BATCH)]
    if jobs == 1 or len(batches) == 1:
        yield from map(try_batch, batches)
        return
    # not forked: whoever calls may have threads
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(batches)), _prepare) as pool:
        yield from pool.imap_unordered(try_batch, batches)


def _prepare() -> None:
    quiet()
    gc.freeze()  # nothing that was imported is ever garbage


def quiet() -> None:
    """Many a life gives reason for a warning."""
    logging.getLogger("ringwide").addHandler(logging.NullHandler())
    logging.getLogger("ringwide").propagate = False


def _try_batch(try_one: Try | None, seeds: range) -> Tried:
    outcomes = [(try_one or simulate)(seed) for seed in seeds]
    failing = tuple(outcome for outcome in outcomes if outcome.problems)
    return Tried(len(seeds), sum(outcome.events for outcome in outcomes), failing)
