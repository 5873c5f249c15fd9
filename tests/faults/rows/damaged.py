"""Frames are damaged on their way: CorruptFrame or a reset, and never a wrong sum."""

import random
from typing import Any

from tests.faults.damage import SPLITS, Damage
from tests.faults.history import RETURNED
from tests.faults.outcome import Run
from tests.faults.proxy import Network
from tests.faults.rows.protection import settings_of
from tests.faults.rows.row import Play, Row, Terms
from tests.faults.stage import Stage

SIZES = (2, 2, 2, 3, 4)
COUNTS = ([10], [1000], [60_000], [300_000], [10, 1000, 100_000], [1, 200_000, 1, 5000], [100_000, 7, 300_000])
MOST_ROUNDS = 30
PROBABILITIES = (0.1, 0.5, 1.0)
TIMEOUT_SECONDS = 1.0
FRAMES_OF_A_RUN = Terms().damaged_frames
NOTICED = {"CorruptFrame", "RemoteProtocolError", "PeerLost"}
LEFT_IN_THE_DARK = {"CollectiveTimeout", "CollectiveAborted"}
"""What a rank sees that waits for the rest of a frame, when the end of it was the last that was to come."""


def playing(protection: str) -> Play:
    """One run is as many rings as it takes to damage a number of frames."""

    async def play(stage: Stage, run: Run, chance: random.Random, terms: Terms) -> None:
        frames = 0
        while frames < terms.damaged_frames and len(run.complaints) < 10:
            done = await _one_ring(stage, run, chance, protection)
            frames += done
            run.notes["damaged"] += done
            run.notes["rings"] += 1

    return play


async def _one_ring(stage: Stage, run: Run, chance: random.Random, protection: str) -> int:
    network = Network(SPLITS[protection])
    settings = {"collective_timeout_seconds": TIMEOUT_SECONDS, **settings_of(protection)}
    damage = Damage(chance, chance.choice(PROBABILITIES))
    async with stage.ring(chance.choice(SIZES), run, network=network, **settings) as cast:
        await cast.ends(cast.start(cast.here, [10]))
        network.set(damage)
        for _ in range(MOST_ROUNDS):
            answers = await cast.ends(cast.start(cast.here, chance.choice(COUNTS)))
            ends = [end for answer in answers.values() for end in answer["ends"]]
            _judge(run, ends)
            if any(end["outcome"] != RETURNED for end in ends):
                break
        network.clear()
    for kind, count in damage.done.items():
        run.notes[kind] += count
    return damage.done.total()


def _judge(run: Run, ends: list[dict[str, Any]]) -> None:
    for end in ends:
        run.notes[end["outcome"]] += 1
        if end["outcome"] not in {RETURNED, *NOTICED, *LEFT_IN_THE_DARK}:
            run.complain(f"{end['outcome']}: {end['words']}")


PROMISE = "CorruptFrame or a reset, never a wrong sum"
ROWS = (
    Row("damaged", f"{PROMISE} ({FRAMES_OF_A_RUN} damaged frames a run)", 1000, playing("checksum"), jobs=3),
    Row("damaged-encrypted", f"{PROMISE} ({FRAMES_OF_A_RUN} damaged records a run)", 50, playing("encrypt"), jobs=3),
    Row("damaged-tls", f"{PROMISE} ({FRAMES_OF_A_RUN} damaged records a run)", 50, playing("tls"), jobs=3),
)
