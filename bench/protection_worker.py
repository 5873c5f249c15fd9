"""One rank of the protection benchmark: a ring for each kind of protection in the same process, taking turns.

In each round every ring makes a few calls on the same tensor, so that noise hits all of them alike; whoever is first
changes from round to round.
"""

import json
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import torch
import uvloop

import ringwide
from bench.speed.turns import calls_per_turn


async def measure(rings: dict[str, ringwide.Ring], nbytes: int, rounds: int) -> dict[str, Any]:
    tensor = torch.ones(nbytes // 4)
    turns: dict[str, list[float]] = {name: [] for name in rings}
    names = list(rings)
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            taken = await _turn(rings[name], tensor)
            if number:  # the first round warms up
                turns[name].append(taken)
    return {"bytes": nbytes, "seconds": turns}


async def _turn(ring: ringwide.Ring, tensor: torch.Tensor) -> float:
    calls = calls_per_turn(tensor.nbytes)
    await ring.barrier()
    times = [await _time(ring, tensor) for _ in range(calls)]
    return sorted(times)[calls // 2]


async def _time(ring: ringwide.Ring, tensor: torch.Tensor) -> float:
    tensor.fill_(1)
    start = time.perf_counter()
    await ring.allreduce(tensor, op="sum")
    taken = time.perf_counter() - start
    assert tensor[-1] == ring.size
    return taken


async def main(task: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        rings = {}
        for (name, settings), peers in zip(task["variants"].items(), task["peers"], strict=True):
            config = ringwide.RingConfig(**settings)
            rings[name] = await stack.enter_async_context(ringwide.join(rank=task["rank"], peers=peers, config=config))
        print(json.dumps([await measure(rings, nbytes, task["rounds"]) for nbytes in task["sizes"]]))


if __name__ == "__main__":
    torch.set_num_threads(1)  # many ranks on one machine
    uvloop.run(main(json.load(sys.stdin)))
