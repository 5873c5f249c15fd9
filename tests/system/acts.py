"""What the processes of a fleet do, one process a rank. Free of torch, whose import would cost each of them seconds."""

import asyncio
import os
import signal
from typing import Any

import numpy as np

import ringwide

MIB = 1024 * 1024


async def lose_a_rank(
    rank: int,
    peers: list[list[str]],
    victim: int,
    megabytes: int,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The victim kills itself when it is in the middle of an all-reduce; the others tell what they saw."""
    numbers = np.arange(megabytes * MIB // 4, dtype=np.float32) + rank
    before = numbers.copy()
    config = ringwide.RingConfig(**(settings or {}))
    async with ringwide.join(rank=rank, peers=peers[0], config=config) as ring:
        if rank == victim:
            call = asyncio.create_task(ring.allreduce(numbers))
            await until_received(ring, megabytes * MIB // 4)
            assert not call.done()
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            await ring.allreduce(numbers)
        except ringwide.PeerLost as error:
            kind, lost = type(error).__name__, error.rank
        else:
            kind, lost = "no error", -1
    return {"kind": kind, "lost": lost, "intact": bool(np.array_equal(numbers, before))}


async def until_received(ring: ringwide.Ring, nbytes: int) -> None:
    """Until segments have come that are, or were before they were encoded, as large as this."""
    while raw_bytes_received(ring) < nbytes:  # noqa: ASYNC110 - some bytes are no event
        await asyncio.sleep(0)


def raw_bytes_received(ring: ringwide.Ring) -> int:
    return sum(tally.raw_bytes for link in ring.statistics().links for tally in link.received)


async def watch_memory(rank: int, peers: list[list[str]], megabytes: int, calls: int) -> dict[str, int]:
    """Resident bytes before the first of many all-reduces, after each, and at the end."""
    numbers = np.full(megabytes * MIB // 4, rank + 1, np.float32)
    async with ringwide.join(rank=rank, peers=peers[0]) as ring:
        await ring.allreduce(np.ones(1000))
        before = resident_bytes()
        after = [await resident_after_a_call(ring, numbers) for _ in range(calls)]
    return {"before": before, "peak": max(after), "warm": after[calls // 10], "last": after[-1]}


async def resident_after_a_call(ring: ringwide.Ring, numbers: Any) -> int:
    await ring.allreduce(numbers)
    return resident_bytes()


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
