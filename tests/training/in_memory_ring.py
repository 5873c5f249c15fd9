"""Ranks that are tasks of one loop and exchange through shared memory: training can be tested without a network."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CodecTally:
    raw_bytes: int
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class Link:
    peer: int
    bytes_sent: int
    sent: tuple[CodecTally, ...] = ()


@dataclass(frozen=True, slots=True)
class Statistics:
    links: tuple[Link, ...]
    bytes_received: int = 0
    codec_seconds: float = 0.0

    @property
    def bytes_sent(self) -> int:
        return sum(link.bytes_sent for link in self.links)


class Meeting:
    """Where all ranks put their tensors and read those of the others. Calls meet by their number, as in a ring."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._given: dict[int, list[list[Tensor] | None]] = {}
        self._complete: dict[int, asyncio.Event] = {}
        self.rings: dict[int, InMemoryRing] = {}

    def ring(self, rank: int) -> "InMemoryRing":
        self.rings[rank] = InMemoryRing(self, rank)
        return self.rings[rank]

    async def exchange(self, number: int, rank: int, tensors: list[Tensor]) -> list[list[Tensor]]:
        given = self._given.setdefault(number, [None] * self.size)
        complete = self._complete.setdefault(number, asyncio.Event())
        given[rank] = [tensor.clone() for tensor in tensors]
        if None not in given:
            complete.set()
        await complete.wait()
        return [each for each in given if each is not None]


REDUCE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda stacked: stacked.sum(dim=0) / len(stacked),
    "max": lambda stacked: stacked.amax(dim=0),
}


class InMemoryRing:
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size
        self.calls: list[str] = []
        self.state: Mapping[str, Any] = {}
        self.tree_bytes = 1024

    async def _exchange(self, what: str, tensors: list[Tensor]) -> list[list[Tensor]]:
        self.calls.append(what)
        return await self.meeting.exchange(len(self.calls), self.rank, tensors)

    async def broadcast(self, tensors: Any, root: int = 0) -> Any:
        mine = _listed(tensors)
        for tensor, theirs in zip(mine, (await self._exchange("broadcast", mine))[root], strict=True):
            tensor.copy_(theirs)
        return tensors

    async def allreduce(self, tensors: Any, op: str = "mean", *, bucket: str = "") -> Any:
        mine = _listed(tensors)
        everyone = await self._exchange(bucket or op, mine)
        for tensor, *given in zip(mine, *everyone, strict=True):
            tensor.copy_(REDUCE[op](torch.stack(given)))
        return tensors

    async def all_gather(self, tensor: Any) -> list[Any]:
        return [given[0] for given in await self._exchange("all_gather", [tensor])]

    async def barrier(self) -> None:
        await self._exchange("barrier", [])

    def statistics(self) -> Statistics:
        """As if every call had sent 1,000 bytes to the next rank, all but those of gradients encoded badly and slowly.

        What the rank before has sent has arrived, whether this one has called or not.
        """
        others = sum(not call.startswith("gradients") for call in self.calls)
        gradients = len(self.calls) - others
        tallies = (CodecTally(raw_bytes=4 * gradients, wire_bytes=gradients), CodecTally(others, others))
        seconds = 0.5 * gradients + 100 * others
        before = self.meeting.rings.get((self.rank - 1) % self.size, self)
        link = Link((self.rank + 1) % self.size, 1000 * len(self.calls), tallies)
        return Statistics((link,), 1000 * len(before.calls), codec_seconds=seconds)

    def algorithm_for(self, nbytes: int) -> str:
        return "tree" if nbytes <= self.tree_bytes else "ring"

    def state_dict(self) -> Mapping[str, Any]:
        return {"owed": torch.full((3,), float(self.rank))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state = state


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)
