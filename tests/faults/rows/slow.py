"""A rank is slow: nothing breaks, and the rank is named in a log line and in `statistics()`."""

import random

from tests.faults.history import RETURNED
from tests.faults.outcome import Run
from tests.faults.proxy import BUFFER_BYTES, SMALL_BUFFER_BYTES, Late, Network, Slow
from tests.faults.rows.row import FLOAT_BYTES, MIB, Play, Row, Terms
from tests.faults.stage import Cast, Stage

SIZES = (3, 4)  # of two ranks that wait for each other, none is the slow one
SHARE_OF_THE_BANDWIDTH = 0.01
DELAY_SECONDS = 0.2
USUAL_CALLS = 5
GRACE = 5
"""On a busy machine all are slow, and it takes longer until one of them clearly is."""


async def _slow_by_bandwidth(cast: Cast, victim: int, usual_bytes_per_second: float) -> None:
    rate = SHARE_OF_THE_BANDWIDTH * usual_bytes_per_second
    assert cast.network is not None
    cast.network.set(Slow(rate), sender=victim)
    cast.network.set(Slow(rate), receiver=victim)


async def _slow_by_delay(cast: Cast, victim: int, _: float) -> None:
    assert cast.network is not None
    cast.network.set(Late(DELAY_SECONDS), sender=victim)
    cast.network.set(Late(DELAY_SECONDS), receiver=victim)


async def _slow_by_computing(cast: Cast, victim: int, _: float) -> None:
    """Nothing is set: it computes before each call."""


def playing(how: str, calls: int) -> Play:
    slow_down = {"bandwidth": _slow_by_bandwidth, "delay": _slow_by_delay, "python": _slow_by_computing}[how]

    async def play(stage: Stage, run: Run, chance: random.Random, terms: Terms) -> None:
        size, counts = chance.choice(SIZES), [terms.slow_megabytes * MIB // FLOAT_BYTES]
        settings = {"suspect_after_seconds": terms.suspect_after_seconds}
        network = Network(buffer_bytes=SMALL_BUFFER_BYTES if how == "bandwidth" else BUFFER_BYTES)
        async with stage.ring(size, run, network=network, **settings) as cast:
            victim = chance.randrange(size)
            usual = min([await _call(cast, run, counts) for _ in range(USUAL_CALLS)])
            await slow_down(cast, victim, 2 * FLOAT_BYTES * counts[0] / usual)
            slow_seconds, done = 0.0, 0
            while done < calls or slow_seconds < terms.slow_seconds * (1 if _named(cast, run, victim) else GRACE):
                if how == "python":
                    cast.members[victim].start("compute", seconds=terms.step_seconds)
                slow_seconds, done = slow_seconds + await _call(cast, run, counts), done + 1
            await _check_naming(cast, run, victim)
            network.clear()

    return play


async def _call(cast: Cast, run: Run, counts: list[int]) -> float:
    """A collective that must not fail, and how long it took for the first rank that called it."""
    errands = cast.start(cast.here, counts)
    ends = await cast.ends(errands)
    for rank, answer in ends.items():
        run.hear(rank, answer)
        for end in answer["ends"]:
            if end["outcome"] != RETURNED:
                run.complain(f"false alarm: rank {rank} raised {end['outcome']}: {end['words']}")
    begun = [errand.begun.result() for errand in errands.values()]
    return max((end["ended"] for answer in ends.values() for end in answer["ends"]), default=0.0) - min(begun)


def _lines(cast: Cast, run: Run, victim: int) -> list[str]:
    return [line for rank in cast.others(victim) for line in run.lines.get(rank, ())]


def _named(cast: Cast, run: Run, victim: int) -> list[str]:
    return [line for line in _lines(cast, run, victim) if f"rank {victim} is slow" in line]


async def _check_naming(cast: Cast, run: Run, victim: int) -> None:
    lines, named = _lines(cast, run, victim), _named(cast, run, victim)
    if not named:
        run.complain(f"run {cast.name}: no line says that rank {victim} is slow: {lines}")
    wrongly = [line for line in lines if " is slow" in line and line not in named]
    if wrongly:
        run.complain(f"run {cast.name}: not rank {victim}, but {wrongly}")
    answers = await cast.on_all("slow", cast.others(victim))
    slow = {rank: answer["slow"] for rank, answer in answers.items()}
    if set(slow.values()) - {None} != {victim}:
        run.complain(f"run {cast.name}: statistics() name {slow}, not rank {victim}")
    run.notes["statistics() that name it"] += list(slow.values()).count(victim)
    run.notes["ranks that wait"] += len(slow)


PROMISE = "nothing breaks, the slow rank is named in a log line and in statistics()"
ROWS = (
    Row("slow-bandwidth", PROMISE, 50, playing("bandwidth", 2), jobs=3),
    Row("slow-delay", PROMISE, 50, playing("delay", 4), jobs=8),
    Row("slow-python", PROMISE, 50, playing("python", 2), jobs=2),
)
