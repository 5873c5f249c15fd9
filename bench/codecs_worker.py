"""One rank of the codec benchmark: gloo and a ring for each codec in the same process, taking turns.

In each round every variant makes one call, from a barrier, so that noise hits all of them alike. The numbers of a call
are new, and filled in outside of its time. What counts is the time of the slowest rank.
"""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import uvloop

import ringwide

ZEROS = 0.9


@dataclass(slots=True)
class Numbers:
    """Numbers of one kind. Fresh ones are the same turned by a random distance: as cheap as a copy."""

    pool: torch.Tensor
    distances: torch.Generator

    def fill(self, tensor: torch.Tensor) -> None:
        distance = int(torch.randint(len(self.pool), (), generator=self.distances))
        tensor[: len(tensor) - distance] = self.pool[distance:]
        tensor[len(tensor) - distance :] = self.pool[:distance]


def make_numbers(count: int, rank: int) -> dict[str, Numbers]:
    """Each rank has its own numbers. Zeros are in the same places on all ranks, so that sums have as many."""
    shared = torch.Generator().manual_seed(0)
    gaussian = torch.randn(count, generator=torch.Generator().manual_seed(1 + rank))
    sparse = gaussian * (torch.rand(count, generator=shared) >= ZEROS)
    return {"gaussian": Numbers(gaussian, shared), "zeros": Numbers(sparse, shared)}


@dataclass(slots=True)
class Player:
    """One variant. Without a ring it is gloo."""

    numbers: Numbers
    ring: ringwide.Ring | None
    seconds: list[float] = field(default_factory=list)
    wire_bytes: list[float] = field(default_factory=list)

    async def call(self, tensor: torch.Tensor) -> tuple[float, float]:
        """One all-reduce: the seconds of the slowest rank, and the bytes that the busiest one sent."""
        self.numbers.fill(tensor)
        sent = self._bytes_sent()
        dist.barrier()
        started = time.perf_counter()
        if self.ring is None:
            dist.all_reduce(tensor)
        else:
            await self.ring.allreduce(tensor)
        seconds = time.perf_counter() - started
        slowest_seconds, most_bytes = slowest(seconds, self._bytes_sent() - sent)
        return slowest_seconds, most_bytes

    async def turn(self, tensor: torch.Tensor) -> None:
        seconds, wire_bytes = await self.call(tensor)
        self.seconds.append(seconds)
        self.wire_bytes.append(wire_bytes)

    def _bytes_sent(self) -> int:
        return 0 if self.ring is None else self.ring.statistics().bytes_sent

    def settled_on(self) -> str | None:
        """What `auto` uses now, and why, as this rank knows it."""
        return "; ".join(f"{choice.codec}: {choice.reason}" for choice in self._choices()) or None

    def has_settled(self) -> bool:
        choices = self._choices()
        return bool(choices) and all(getattr(choice, "settled", False) for choice in choices)

    def _choices(self) -> Sequence[Any]:
        return () if self.ring is None else self.ring.statistics().choices


def slowest(*figures: float) -> tuple[float, ...]:
    """The largest of each figure over all ranks."""
    gathered = torch.tensor(figures, dtype=torch.float64)
    dist.all_reduce(gathered, op=dist.ReduceOp.MAX)
    return tuple(gathered.tolist())


async def warm_up(player: Player, tensor: torch.Tensor, most_calls: int) -> list[float]:
    """Call until all ranks have settled on a codec, or often enough. The seconds of each call."""
    seconds: list[float] = []
    undecided = 1.0
    while undecided and len(seconds) < most_calls:
        seconds.append((await player.call(tensor))[0])
        (undecided,) = slowest(not player.has_settled())
    return seconds


async def play(players: list[Player], task: dict[str, Any]) -> None:
    tensor = torch.empty(task["bytes"] // 4)
    started = time.perf_counter()

    def tell(what: str) -> None:
        if task["rank"] == 0:
            print(f"  {time.perf_counter() - started:6.1f} s: {what}", file=sys.stderr, flush=True)

    for variant, player in zip(task["variants"], players, strict=True):
        seconds = await warm_up(player, tensor, task["warm_up"] if variant["learns"] else 1)
        tell(f"{variant['name']} on {variant['data']} is warm: {len(seconds)} calls, the last took {seconds[-1]:.3f} s")
    for number in range(task["rounds"]):
        for variant, player in zip(task["variants"], players, strict=True):
            if number < task["lesser_rounds"] or not variant["lesser"]:
                await player.turn(tensor)
        tell(f"round {number + 1} of {task['rounds']}")


async def main(task: dict[str, Any]) -> None:
    numbers = make_numbers(task["bytes"] // 4, task["rank"])
    players = []
    async with AsyncExitStack() as stack:
        for variant, peers in zip(task["variants"], task["peers"], strict=True):
            ring = None
            if variant["settings"] is not None:
                others = {"insecure": task["insecure"], "codec_threads": 0}  # all hosts share the cores of this machine
                config = ringwide.RingConfig(**variant["settings"], **others)
                joining = ringwide.join(rank=task["rank"], peers=peers, config=config)
                ring = await stack.enter_async_context(joining)
            players.append(Player(numbers[variant["data"]], ring))
        await play(players, task)
        cells = [
            {"seconds": player.seconds, "wire_bytes": player.wire_bytes, "settled_on": player.settled_on()}
            for player in players
        ]
    print(json.dumps(cells))


if __name__ == "__main__":
    task = json.load(sys.stdin)
    torch.set_num_threads(1)  # many ranks on one machine
    store, size = f"tcp://{task['store']}", len(task["peers"][0])
    dist.init_process_group("gloo", init_method=store, rank=task["rank"], world_size=size)
    uvloop.run(main(task))
    dist.destroy_process_group()
