"""How long ranks take to find each other, from a moment that all of them know, when all are started and ready."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

import ringwide

READY_SECONDS = 0.02
"""For the moment to get round."""
Join = Callable[[], Awaitable[float]]
"""Joins, says at which moment it had, and leaves."""


async def seconds_to_join(starter: ringwide.Ring, joins: Sequence[Join]) -> list[float]:
    """Of each: from the moment that rank 0 chose until this rank has joined. Moments are equal in all processes."""
    taken = []
    for join in joins:
        moment = np.array([time.monotonic() + READY_SECONDS])
        await starter.broadcast(moment)
        await asyncio.sleep(float(moment[0]) - time.monotonic())
        taken.append(await join() - float(moment[0]))
        await starter.barrier()
    return taken


def joining_ring(rank: int, peers: Sequence[str]) -> Join:
    async def join() -> float:
        async with ringwide.join(rank=rank, peers=peers) as ring:
            moment = time.monotonic()
            await ring.barrier()  # nobody leaves while others still join
        return moment

    return join
