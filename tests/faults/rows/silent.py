"""The links of a rank go silent, one way or both, and nothing ends: PeerLost on all after the suspicion time."""

import random

from tests.faults.outcome import Run
from tests.faults.proxy import Fault, Hold, Network, Swallow
from tests.faults.rows.frozen import bars
from tests.faults.rows.row import FLOAT_BYTES, MIB, Play, Row, Terms
from tests.faults.stage import Stage

SIZES = (2, 3, 4)
MEGABYTES = (0, 1, 8)  # 0: a few numbers
HOLES: tuple[Fault, ...] = (Swallow(), Hold())


def playing(*, out: bool, into: bool) -> Play:
    """Silent is what the rank sends (`out`), or what is sent to it (`into`)."""

    async def play(stage: Stage, run: Run, chance: random.Random, terms: Terms) -> None:
        size, megabytes = chance.choice(SIZES), chance.choice(MEGABYTES)
        hole = chance.choice(HOLES)
        counts, network = [max(1000, megabytes * MIB // FLOAT_BYTES)], Network()
        settings = {"suspect_after_seconds": terms.suspect_after_seconds}
        async with stage.ring(size, run, network=network, **settings) as cast:
            victim = chance.randrange(size)
            await cast.ends(cast.start(cast.here, counts))
            errands = cast.start(cast.here, counts)
            if out:
                network.set(hole, sender=victim)
            if into:
                network.set(hole, receiver=victim)
            begun = [await errand.begun for errand in errands.values()]
            await cast.until_error(errands, counts)
            run.must_be([victim], {"PeerLost"})
            run.must_be(cast.others(victim), {"PeerLost"}, lost=victim)
            run.since(max(begun), cast.here)

    return play


PROMISE = "PeerLost after the suspicion time, tensors intact"
ROWS = (
    Row("silent-out", PROMISE, 50, playing(out=True, into=False), jobs=8, bars=bars),
    Row("silent-in", PROMISE, 50, playing(out=False, into=True), jobs=8, bars=bars),
    Row("silent-both", PROMISE, 50, playing(out=True, into=True), jobs=8, bars=bars),
)
