"""A rank is frozen in the middle of a collective (SIGSTOP): PeerLost on all others after the suspicion time.

When it goes on, it finds that the others have given up on it, and its tensors are intact as well.
"""

import random
import signal

from tests.faults.outcome import Bar, Run
from tests.faults.rows.row import FLOAT_BYTES, MIB, Row, Terms
from tests.faults.stage import Stage

SIZES = (2, 3, 4)
MEGABYTES = (0, 1, 8)  # 0: a few numbers


async def play(stage: Stage, run: Run, chance: random.Random, terms: Terms) -> None:
    size, megabytes = chance.choice(SIZES), chance.choice(MEGABYTES)
    counts = [max(1000, megabytes * MIB // FLOAT_BYTES)]
    async with stage.ring(size, run, suspect_after_seconds=terms.suspect_after_seconds) as cast:
        victim = chance.randrange(size)
        await cast.ends(cast.start(cast.here, counts))
        moment = cast.members[victim].signal(signal.SIGSTOP)
        errands = cast.start(cast.here, counts)
        others = cast.others(victim)
        its_own = {victim: errands.pop(victim)}
        await cast.until_error(errands, counts)
        cast.members[victim].signal(signal.SIGCONT)
        run.since(moment, others)
        await cast.until_error(its_own, counts)
        run.must_be(others, {"PeerLost"}, lost=victim)
        run.must_be([victim], {"PeerLost"})


def bars(terms: Terms) -> tuple[Bar, ...]:
    return (Bar(1, terms.suspect_after_seconds + 0.5),)


ROW = Row("frozen", "PeerLost naming the rank after the suspicion time, tensors intact", 50, play, jobs=8, bars=bars)
