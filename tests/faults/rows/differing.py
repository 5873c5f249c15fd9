"""One rank never calls, or calls something else: all ranks learn of it, and the ring works on."""

import random
from typing import Any

from tests.faults.history import RETURNED
from tests.faults.outcome import Bar, Run
from tests.faults.rows.row import FLOAT_BYTES, MIB, Row, Terms
from tests.faults.stage import Cast, Stage

SIZES = (2, 3, 4)
MOST_CALLS_BEFORE = 60
SMALL, BULK = 1000, MIB // FLOAT_BYTES
OTHERWISE: tuple[dict[str, Any], ...] = (
    {"op": "max"},
    {"dtype": "float64"},
    {"counts": [SMALL + 1]},
    {"counts": [BULK]},
    {"kind": "broadcast"},
    {"kind": "all_gather"},
    {"kind": "barrier", "counts": [0]},
)


async def never_calls(stage: Stage, run: Run, chance: random.Random, terms: Terms) -> None:
    size, counts = chance.choice(SIZES), [chance.choice([SMALL, BULK])]
    settings: dict[str, Any] = {
        "warn_after_seconds": terms.warn_after_seconds,
        "collective_timeout_seconds": terms.timeout_seconds,
        "suspect_after_seconds": terms.suspect_after_seconds,
    }
    async with stage.ring(size, run, **settings) as cast:
        absent = chance.randrange(size)
        for _ in range(chance.randrange(MOST_CALLS_BEFORE)):
            await cast.ends(cast.start(cast.here, [SMALL]))
        errands = cast.start(cast.others(absent), counts)
        begun = [await errand.begun for errand in errands.values()]
        await _errors(cast, run, errands)
        run.since(max(begun), cast.others(absent))
        late = cast.start([absent], counts, call=cast.last_call)
        await _errors(cast, run, late)
        run.must_be(cast.here, {"CollectiveTimeout"})
        _check_lines(cast, run, absent)
        await _works_on(cast, run)


def _check_lines(cast: Cast, run: Run, absent: int) -> None:
    """The first collective of a ring is that in which ranks tell each other that they are there."""
    number = cast.last_call + 2
    for rank in cast.others(absent):
        lines = run.lines.get(rank, [])
        if not any(f"collective {number} allreduce: waiting for rank {absent}" in line for line in lines):
            run.complain(f"rank {rank} does not say that collective {number} waits for rank {absent}: {lines}")
        error = run.errors.get(rank)
        if error is not None and f"rank {absent}" not in error["words"]:
            run.complain(f"rank {rank} does not name rank {absent}: {error['words']}")


async def calls_something_else(stage: Stage, run: Run, chance: random.Random, terms: Terms) -> None:
    size, otherwise = chance.choice(SIZES), chance.choice(OTHERWISE)
    counts = [SMALL if "counts" in otherwise else chance.choice([SMALL, BULK])]
    async with stage.ring(size, run) as cast:
        other = chance.randrange(size)
        await _works_on(cast, run)
        errands = cast.start(cast.others(other), counts)
        errands |= cast.start([other], call=cast.last_call, **{"counts": counts, **otherwise})
        begun = [await errand.begun for errand in errands.values()]
        await _errors(cast, run, errands)
        run.since(max(begun), cast.here)
        run.must_be(cast.here, {"CollectiveMismatch"})
        await _works_on(cast, run)


async def _errors(cast: Cast, run: Run, errands: Any) -> None:
    for rank, answer in (await cast.ends(errands)).items():
        run.hear(rank, answer)
        run.errors[rank] = answer["ends"][0]
    if returned := [rank for rank in errands if run.errors.get(rank, {}).get("outcome") == RETURNED]:
        run.complain(f"run {cast.name}: ranks {returned} returned")


async def _works_on(cast: Cast, run: Run) -> None:
    for rank, answer in (await cast.ends(cast.start(cast.here, [SMALL]))).items():
        if answer["ends"][0]["outcome"] != RETURNED:
            run.complain(f"run {cast.name}: the ring does not work on: rank {rank}: {answer['ends'][0]['words']}")


ROWS = (
    Row(
        "never-calls",
        "a line that names the rank, then CollectiveTimeout on all, and the ring works on",
        100,
        never_calls,
        jobs=10,
        bars=lambda terms: (Bar(1, terms.timeout_seconds + 1),),
    ),
    Row(
        "something-else",
        "CollectiveMismatch on all at once, and the ring works on",
        100,
        calls_something_else,
        jobs=1,
        bars=lambda _: (Bar(1, 0.5),),
    ),
)
