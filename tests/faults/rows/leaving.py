"""A rank leaves while others are inside a collective: PeerLeft on all others at once, and its process ends soon."""

import random
import signal

from tests.faults.outcome import Bar, Run
from tests.faults.rows.row import FLOAT_BYTES, MIB, Play, Row, Terms
from tests.faults.stage import Cast, Stage

SIZES = (2, 3, 4)
SIGNALS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM}
ITS_END = "its end"


def playing(how: str) -> Play:
    """It leaves between two calls, or in the middle of one that a third rank has not made yet."""

    async def play(stage: Stage, run: Run, chance: random.Random, terms: Terms) -> None:
        size, counts = chance.choice(SIZES), [chance.choice([1000, 8 * MIB // FLOAT_BYTES])]
        async with stage.ring(size, run) as cast:
            leaver = chance.randrange(size)
            others = cast.others(leaver)
            await cast.ends(cast.start(cast.here, counts))
            inside = size > 2 and how in SIGNALS and chance.random() < 0.5
            absent = [others.pop(chance.randrange(len(others)))] if inside else []
            errands = cast.start([*others, leaver] if inside else others, counts)
            for errand in errands.values():
                await errand.begun
            errands.pop(leaver, None)
            cast.gone.add(leaver)
            moment = _send_off(cast, leaver, how)
            run.times[ITS_END] = await cast.members[leaver].ended() - moment
            await cast.until_error(errands, counts)
            run.since(moment, others)
            await cast.until_error(cast.start(absent, counts, call=cast.last_call), counts)
            run.must_be(cast.here, {"PeerLeft"}, lost=leaver)
            run.notes["inside" if inside else "outside"] += 1

    return play


def _send_off(cast: Cast, leaver: int, how: str) -> float:
    member = cast.members[leaver]
    if how in SIGNALS:
        return member.signal(SIGNALS[how])
    return member.leave_for_good()


PROMISE = "PeerLeft on the others at once, the leaver ends within 1 s"
ROWS = tuple(
    Row(f"leaving-{how.lower()}", PROMISE, 50, playing(how), jobs=1, bars=lambda _: (Bar(1, 0.5), Bar(1, 1.0, ITS_END)))
    for how in (*SIGNALS, "exit")
)
