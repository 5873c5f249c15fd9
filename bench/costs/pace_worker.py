"""One rank that takes turns with gloo and with ringwide: how long, and how much of the processor.

A turn is a few calls, one after the other, on the same tensor of zeros: their sum is zeros again, so nothing has to be
filled in between, which would count as processor time.
"""

import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import torch
import torch.distributed as dist
import uvloop

import ringwide
from bench.costs.joining import Join, joining_ring, seconds_to_join
from bench.own_figures import processor_seconds

Call = Callable[[torch.Tensor], Awaitable[object]]


def calls_per_turn(nbytes: int, ranks: int) -> int:
    """So many that a turn of the slower one stays below a second or so."""
    if nbytes <= 2**17:
        return max(5, 100 // ranks)
    return max(3, 24 // ranks) if nbytes <= 2**21 else 2


async def measure(ring: ringwide.Ring, nbytes: int, rounds: int) -> dict[str, Any]:
    async def gloo(tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    async def ours(tensor: torch.Tensor) -> None:
        await ring.allreduce(tensor, op="sum")

    libraries: dict[str, Call] = {"gloo": gloo, "ringwide": ours}
    await check(libraries, ring.size)
    tensor = torch.empty(nbytes // 4).zero_()  # written, so that its pages are its own
    turns: dict[str, list[list[float]]] = {name: [] for name in libraries}
    names = list(libraries)
    for number in range(rounds + 1):
        for name in names if number % 2 else reversed(names):
            await ring.barrier()
            taken = await turn(libraries[name], tensor, calls_per_turn(nbytes, ring.size))
            if number:  # the first round warms up
                turns[name].append(taken)
    return {"bytes": nbytes, "algorithm": ring.algorithm_for(nbytes), "turns": turns}


async def check(libraries: dict[str, Call], ranks: int) -> None:
    for call in libraries.values():
        ones = torch.ones(10)
        await call(ones)
        assert ones.tolist() == [ranks] * 10


async def turn(call: Call, tensor: torch.Tensor, calls: int) -> list[float]:
    """Of one call: seconds, and processor seconds in the program and in the kernel."""
    user, system = processor_seconds()
    started = time.perf_counter()
    for _ in range(calls):
        await call(tensor)
    seconds = time.perf_counter() - started
    user_after, system_after = processor_seconds()
    return [seconds / calls, (user_after - user) / calls, (system_after - system) / calls]


def joining_gloo(rank: int, size: int, store: str) -> Join:
    async def join() -> float:
        dist.init_process_group("gloo", init_method=f"tcp://{store}", rank=rank, world_size=size)
        moment = time.monotonic()
        dist.barrier()
        dist.destroy_process_group()
        return moment

    return join


async def main(task: dict[str, Any]) -> None:
    rank, size = task["rank"], len(task["peers"])
    async with ringwide.join(rank=rank, peers=task["peers"]) as ring:
        joins = {
            "gloo": [joining_gloo(rank, size, store) for store in task["stores"]],
            "ringwide": [joining_ring(rank, peers) for peers in task["joins"]],
        }
        in_turns = [join for pair in zip(*joins.values(), strict=True) for join in pair]
        taken = await seconds_to_join(ring, in_turns)
        dist.init_process_group("gloo", init_method=f"tcp://{task['store']}", rank=rank, world_size=size)
        cells = [await measure(ring, nbytes, task["rounds"]) for nbytes in task["sizes"]]
        dist.destroy_process_group()
    joined = {name: taken[place :: len(joins)][1:] for place, name in enumerate(joins)}  # the first one warms up
    print(json.dumps({"cells": cells, "joined": joined}))


if __name__ == "__main__":
    torch.set_num_threads(1)  # many ranks on one machine
    uvloop.run(main(json.load(sys.stdin)))
