"""One rank of the delay benchmark: a ring for each number of lanes in the same process, taking turns.

Every connection passes the proxy, whose addresses are the peers; where this rank really listens, only the proxy knows.
"""

import json
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import uvloop

import ringwide


async def timed(ring: ringwide.Ring, array: Any) -> float:
    """From the moment at which a barrier lets this rank go."""
    array.fill(1)
    await ring.barrier()
    started = time.perf_counter()
    await ring.allreduce(array, op="sum")
    taken = time.perf_counter() - started
    assert array[0] == array[-1] == ring.size
    return taken


async def main(task: dict[str, Any]) -> None:
    array = np.empty(task["bytes"] // 4, np.float32)
    async with AsyncExitStack() as stack:
        rings = {}
        for lanes, peers, listening in zip(task["lanes"], task["peers"], task["listening"], strict=True):
            config = ringwide.RingConfig(
                lanes=lanes,
                same_host="tcp",
                listen=listening[task["rank"]],
                checksum=True,  # as on every connection beyond this machine
            )
            joining = ringwide.join(rank=task["rank"], peers=peers, config=config)
            rings[lanes] = await stack.enter_async_context(joining)
        turns: dict[int, list[float]] = {lanes: [] for lanes in rings}
        for number in range(task["rounds"] + 1):
            for lanes, ring in rings.items():
                taken = await timed(ring, array)
                if number:  # the first round warms up
                    turns[lanes].append(taken)
    print(json.dumps(list(turns.values())))


if __name__ == "__main__":
    uvloop.run(main(json.load(sys.stdin)))
