"""One rank of the all-reduce benchmark: gloo and ringwide in the same process, taking turns.

Each round times a few calls of one and then of the other on the same tensor, so that noise hits both alike.
"""

import asyncio
import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import uvloop

import ringwide


def calls_per_round(nbytes: int) -> int:
    return 50 if nbytes <= 2**17 else 10 if nbytes <= 2**21 else 2


async def measure(ring: ringwide.Ring, nbytes: int, rounds: int) -> dict[str, Any]:
    tensor = torch.ones(nbytes // 4)
    turns: dict[str, list[float]] = {"gloo": [], "ringwide": []}
    for number in range(rounds + 1):
        calls = calls_per_round(nbytes)
        gloo = [_time_gloo(tensor) for _ in range(calls)]
        await ring.barrier()
        ours = [await _time_ringwide(ring, tensor) for _ in range(calls)]
        dist.barrier()
        if number:  # the first round warms up
            turns["gloo"].append(sorted(gloo)[calls // 2])
            turns["ringwide"].append(sorted(ours)[calls // 2])
    return {"bytes": nbytes, "algorithm": ring.algorithm_for(nbytes), **turns}


def _time_gloo(tensor: torch.Tensor) -> float:
    tensor.fill_(1)
    start = time.perf_counter()
    dist.all_reduce(tensor)
    return time.perf_counter() - start


async def _time_ringwide(ring: ringwide.Ring, tensor: torch.Tensor) -> float:
    tensor.fill_(1)
    start = time.perf_counter()
    await ring.allreduce(tensor, op="sum")
    taken = time.perf_counter() - start
    assert tensor[-1] == ring.size
    return taken


async def main(task: dict[str, Any]) -> None:
    config = ringwide.RingConfig(**task["config"])
    async with ringwide.join(rank=task["rank"], peers=task["peers"], config=config) as ring:
        cells = [await measure(ring, nbytes, task["rounds"]) for nbytes in task["sizes"]]
    print(json.dumps(cells))


if __name__ == "__main__":
    task = json.load(sys.stdin)
    torch.set_num_threads(1)  # many ranks on one machine
    store, size = f"tcp://{task['store']}", len(task["peers"])
    dist.init_process_group("gloo", init_method=store, rank=task["rank"], world_size=size)
    uvloop.run(main(task)) if task["uvloop"] else asyncio.run(main(task))
    dist.destroy_process_group()
