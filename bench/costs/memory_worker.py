"""One rank of the memory curve: what calls of one size add to a fresh process that has its tensor already."""

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import uvloop

import ringwide
from bench.own_figures import forget_peak, peak_resident_bytes, proportional_bytes, resident_bytes

Call = Callable[[Any], Awaitable[object]]


async def growth(call: Call, array: Any, calls: int) -> dict[str, list[int]]:
    """After each call: beyond what the process had before the first one."""
    await call(array[:10].copy())  # what the first call of all needs is not a matter of size
    forget_peak()
    resident, proportional = resident_bytes(), proportional_bytes()
    found: dict[str, list[int]] = {"peak": [], "resident": [], "proportional": []}
    for _ in range(calls):
        await call(array)
        found["peak"].append(max(0, peak_resident_bytes() - resident))
        found["resident"].append(max(0, resident_bytes() - resident))
        found["proportional"].append(max(0, proportional_bytes() - proportional))
    return found


async def of_ringwide(task: dict[str, Any]) -> dict[str, list[int]]:
    async with ringwide.join(rank=task["rank"], peers=task["peers"]) as ring:

        async def call(array: Any) -> None:
            await ring.allreduce(array, op="max")

        found = await growth(call, np.ones(task["bytes"] // 4, np.float32), task["calls"])
        await ring.barrier()  # nobody's arena goes while others still look at theirs
        return found


async def of_gloo(task: dict[str, Any]) -> dict[str, list[int]]:
    import torch
    import torch.distributed as dist

    async def call(array: Any) -> None:
        dist.all_reduce(torch.from_numpy(array), op=dist.ReduceOp.MAX)

    store, size = f"tcp://{task['store']}", len(task["peers"])
    dist.init_process_group("gloo", init_method=store, rank=task["rank"], world_size=size)
    found = await growth(call, np.ones(task["bytes"] // 4, np.float32), task["calls"])
    dist.barrier()
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    task = json.load(sys.stdin)
    print(json.dumps(uvloop.run({"gloo": of_gloo, "ringwide": of_ringwide}[task["library"]](task))))
