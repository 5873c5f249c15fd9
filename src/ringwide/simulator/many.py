"""Many seeds, on several cores."""

import gc
import logging
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass

from ringwide.simulator.life import Outcome, simulate

_BATCH = 100


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of some seeds: how many there were, and all that is wrong."""

    seeds: int
    events: int
    failing: tuple[Outcome, ...]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def try_seeds(first: int, count: int, *, jobs: int) -> Iterator[Tried]:
    """Try `count` seeds, batch by batch."""
    batches = [range(start, min(start + _BATCH, first + count)) for start in range(first, first + count, _BATCH)]
    if jobs == 1 or len(batches) == 1:
        yield from map(_try_batch, batches)
        return
    # not forked: whoever calls may have threads
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(batches)), _prepare) as pool:
        yield from pool.imap_unordered(_try_batch, batches)


def _prepare() -> None:
    quiet()
    gc.freeze()  # nothing that was imported is ever garbage


def quiet() -> None:
    """Many a life gives reason for a warning."""
    logging.getLogger("ringwide").addHandler(logging.NullHandler())
    logging.getLogger("ringwide").propagate = False


def _try_batch(seeds: range) -> Tried:
    outcomes = [simulate(seed) for seed in seeds]
    failing = tuple(outcome for outcome in outcomes if outcome.problems)
    return Tried(len(seeds), sum(outcome.events for outcome in outcomes), failing)
