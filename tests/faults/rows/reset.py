"""The connections between two ranks are reset in the middle of a collective: PeerLost on all, at once."""

import asyncio
import random
import time

from tests.faults.outcome import Bar, Run
from tests.faults.proxy import Network
from tests.faults.rows.row import FLOAT_BYTES, MIB, Row, Terms
from tests.faults.stage import Stage

SIZES = (2, 3, 4)
LONGEST_WAIT_SECONDS = 0.02


async def play(stage: Stage, run: Run, chance: random.Random, terms: Terms) -> None:
    size, network = chance.choice(SIZES), Network()
    counts = [chance.choice([1000, 8 * MIB // FLOAT_BYTES])]
    async with stage.ring(size, run, network=network) as cast:
        one, other = chance.sample(range(size), 2)
        await cast.ends(cast.start(cast.here, counts))
        errands = cast.start(cast.here, counts)
        await asyncio.sleep(chance.uniform(0, LONGEST_WAIT_SECONDS))
        moment = time.monotonic()
        network.reset(sender=one, receiver=other)
        await cast.until_error(errands, counts)
        run.since(moment, cast.here)
        run.must_be(cast.here, {"PeerLost"})
        for rank, error in run.errors.items():
            if error["lost"] not in {one, other} - {rank}:
                run.complain(f"rank {rank} names rank {error['lost']}, not {one} or {other}: {error['words']}")


ROW = Row("reset", "PeerLost naming one end of the link, tensors intact", 50, play, bars=lambda _: (Bar(1, 1.0),))
