"""A rank is killed at a random moment of a large all-reduce: PeerLost on all others, naming it."""

import asyncio
import random
import signal
import time

from tests.faults.outcome import Bar, Run
from tests.faults.rows.row import FLOAT_BYTES, MIB, Row, Terms
from tests.faults.stage import Cast, Stage

TRIES = 10
"""A moment may be so late that the collective is over on all ranks: then another one is tried."""


async def play(stage: Stage, run: Run, chance: random.Random, terms: Terms) -> None:
    size = chance.choice(terms.sizes)
    counts = [terms.megabytes * MIB // FLOAT_BYTES]
    async with stage.ring(size, run) as cast:
        victim = chance.randrange(size)
        await cast.ends(cast.start(cast.here, counts))  # memory is mapped, buffers are there
        usual = await _usual_seconds(cast, counts)
        for _ in range(TRIES):
            errands = cast.start(cast.here, counts)
            begun = await errands[victim].begun
            await asyncio.sleep(max(0.0, begun + chance.uniform(0, usual) - time.monotonic()))
            if not all(errand.answer.done() for errand in errands.values()):
                break
            await cast.ends(errands)
        cast.gone.add(victim)
        moment = cast.members[victim].signal(signal.SIGKILL)
        errands.pop(victim)
        await cast.until_error(errands, counts)
        run.must_be(cast.here, {"PeerLost"}, lost=victim)
        run.since(moment, cast.here)
        run.notes[f"{size} ranks"] += 1


async def _usual_seconds(cast: Cast, counts: list[int]) -> float:
    errands = cast.start(cast.here, counts)
    begun = min([await errand.begun for errand in errands.values()])
    ends = await cast.ends(errands)
    return max(float(answer["ends"][0]["ended"]) for answer in ends.values()) - begun


ROW = Row(
    "killed", "PeerLost naming the rank, tensors intact", 200, play, bars=lambda _: (Bar(0.5, 0.1), Bar(0.99, 0.5))
)
