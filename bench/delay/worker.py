"""One rank of the delay benchmark: gloo and a ring for each number of lanes in the same process, taking turns.

Every connection passes the proxy, whose addresses are the peers; where this rank really listens, only the proxy knows.
"""

import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import uvloop

import ringwide

Call = Callable[[Any], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Player:
    """One that takes turns: how it waits for the other ranks, and how it sums."""

    barrier: Callable[[], Awaitable[object]]
    sum: Call

    async def turn(self, array: Any, ranks: int) -> float:
        """From the moment at which a barrier lets this rank go."""
        array.fill(1)
        await self.barrier()
        started = time.perf_counter()
        await self.sum(array)
        taken = time.perf_counter() - started
        assert array[0] == array[-1] == ranks
        return taken


def of_gloo(task: dict[str, Any]) -> Player:
    import torch
    import torch.distributed as dist

    from bench.delay import gloo

    async def barrier() -> None:
        dist.barrier()

    async def total(array: Any) -> None:
        dist.all_reduce(torch.from_numpy(array))

    real, port = task["gloo"][task["rank"]]
    gloo.join(task["rank"], len(task["gloo"]), store=task["store"], port=port, real=real)
    return Player(barrier, total)


async def of_ring(stack: AsyncExitStack, task: dict[str, Any], number: int) -> Player:
    config = ringwide.RingConfig(
        lanes=task["lanes"][number],
        same_host="tcp",
        listen=task["listening"][number][task["rank"]],
        checksum=True,  # as on every connection beyond this machine
    )
    joining = ringwide.join(rank=task["rank"], peers=task["peers"][number], config=config)
    ring = await stack.enter_async_context(joining)
    return Player(ring.barrier, lambda array: ring.allreduce(array, op="sum"))


async def main(task: dict[str, Any]) -> None:
    array, ranks = np.empty(task["bytes"] // 4, np.float32), len(task["peers"][0])
    async with AsyncExitStack() as stack:
        players = {"gloo": of_gloo(task)} if task["gloo"] else {}
        for number, lanes in enumerate(task["lanes"]):
            players[str(lanes)] = await of_ring(stack, task, number)
        turns: dict[str, list[float]] = {name: [] for name in players}
        for number in range(task["rounds"] + 1):
            for name, player in players.items():
                taken = await player.turn(array, ranks)
                if number:  # the first round warms up
                    turns[name].append(taken)
    print(json.dumps(turns))


if __name__ == "__main__":
    uvloop.run(main(json.load(sys.stdin)))
