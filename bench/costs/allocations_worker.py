"""One rank of the allocation curve: what the interpreter holds after many calls, and what a call needs meanwhile.

The cyclic collector is off while calls are made: what it finds afterwards are objects that only it could free.
"""

import gc
import json
import sys
import tracemalloc
from typing import Any

import numpy as np
import torch
import uvloop

import ringwide

CHECKPOINTS, PEAKS = 9, 9
FIGURES = ("cyclic", "live_bytes", "live_blocks")


def calls_per_step(nbytes: int) -> int:
    return 100 if nbytes <= 2**17 else 30 if nbytes <= 2**21 else 6


async def measure(ring: ringwide.Ring, nbytes: int) -> dict[str, Any]:
    tensor, calls = torch.empty(nbytes // 4).zero_(), calls_per_step(nbytes)

    async def many(count: int) -> None:
        for _ in range(count):
            await ring.allreduce(tensor, op="sum")

    await many(2 * calls)
    gc.collect()
    figures = np.zeros((CHECKPOINTS, len(FIGURES)), np.int64)  # once and for all: what is noted must not be counted
    for row in figures:
        await many(calls)
        row[:] = gc.collect(), tracemalloc.get_traced_memory()[0], sys.getallocatedblocks()
    peaks = []
    for _ in range(PEAKS):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        await many(1)
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    found = dict(zip(FIGURES, figures.T.tolist(), strict=True))
    return {"bytes": nbytes, "algorithm": ring.algorithm_for(nbytes), "calls": calls, **found, "peak_bytes": peaks}


async def main(task: dict[str, Any]) -> None:
    async with ringwide.join(rank=task["rank"], peers=task["peers"]) as ring:
        tracemalloc.start()
        gc.disable()
        print(json.dumps([await measure(ring, nbytes) for nbytes in task["sizes"]]))
        await ring.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    uvloop.run(main(json.load(sys.stdin)))
