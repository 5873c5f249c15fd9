"""Subgroups: some ranks of a ring that make calls of their own over its connections, heartbeats and threads.

Rules:
- Each has an epoch, a number that no other subgroup of the ring has ever had. It is in every frame of the subgroup, and
  the ring hands frames of other epochs than its own to `Subgroups`.
- A subgroup numbers its ranks anew. Its links are those of the ring, under their new numbers.
- A frame may come before this rank has made the subgroup: it is kept. Only the first collective of a subgroup can be so
  early, as the second begins after all ranks have called the first, so little is kept.
- A frame may come after this rank has left the subgroup: nobody needs it.
- To the ring, and to other subgroups, there is no order of calls. So a collective with bulk is gated, as on a named
  channel (see `dispatcher.py`).
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringwide.collectives.running_collective import LaneSharing
from ringwide.config.ring_config import RingConfig
from ringwide.errors import RingClosed, RingwideError, fresh
from ringwide.health.heartbeats import Heartbeats
from ringwide.health.stragglers import SlowRank
from ringwide.runtime.connections import Subgroup
from ringwide.runtime.core import NETWORK_BYTES, Core, FormedRing, RingCore


class SubgroupHeartbeats:
    """Heartbeats of the ring, on behalf of a subgroup. They tell nothing of its calls."""

    def __init__(self, heartbeats: Heartbeats) -> None:
        self._heartbeats = heartbeats

    def watch(self, _: int) -> None:
        self._heartbeats.watch(0, subgroup=self)

    def rest(self) -> None:
        self._heartbeats.rest(subgroup=self)

    def called(self, _: int) -> int:
        return 0


class SubgroupCore(Core):
    """The core of one rank in a subgroup: the ring of which it is a part has connections, heartbeats and threads."""

    def __init__(self, ring: RingCore, ranks: Sequence[int], epoch: int, config: RingConfig) -> None:
        """`ranks` of the ring, in their order in the subgroup. `epoch` is its own, and known to all of them."""
        self._ring, self._ranks, self._epoch = ring, ranks, epoch
        self._over: asyncio.Future[RingwideError] = asyncio.get_running_loop().create_future()
        links = {place: ring.links[rank] for place, rank in enumerate(ranks) if rank != ring.rank}
        super().__init__(
            ranks.index(ring.rank),
            links,
            config,
            leaving=ring.leaving,
            codec_pool=ring.codec_pool,
            sharing=LaneSharing(epoch, ordered=False, paused=ring.sharing.paused),
            on_over=self._on_over,
        )
        self.heartbeats = ring.heartbeats
        self._watch = SubgroupHeartbeats(ring.heartbeats)
        self._left = False

    def _on_over(self, error: RingwideError) -> None:
        if not self._over.done():
            self._over.set_result(error)

    async def form(self) -> FormedRing:
        """Meet the other ranks of the subgroup, and connect to new neighbours."""
        config, started = self.config, time.perf_counter()
        planner = self.planner(tree_bytes=NETWORK_BYTES)
        neighbours = [self._ranks[place] for place in self.links if planner.exchanges_bulk(place)]
        lanes = self._ring.connections.expect_bulk(neighbours, config.lanes)
        self._ring.subgroups.add(self._epoch, Subgroup(self._ranks, self.dispatcher, self.endpoint, self._say_goodbye))
        formed = await self.compare_notes(planner, config.start_timeout_seconds)  # now all expect these lanes
        await self._open(lanes, config.start_timeout_seconds - (time.perf_counter() - started))
        self.dispatcher.deadlines.start(self._watch)
        return formed

    async def _open(self, lanes: Mapping[int, Sequence[int]], seconds: float) -> None:
        """Open new lanes, unless a rank of the subgroup is lost meanwhile."""
        opening = asyncio.create_task(self._ring.connections.open_more(lanes, timeout_seconds=seconds))
        try:
            both: list[asyncio.Future[Any]] = [opening, self._over]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                raise fresh(self._over.result())
            opening.result()
        finally:
            opening.cancel()

    def slowest(self) -> SlowRank | None:
        slow = super().slowest()
        return replace(slow, rank=self._ranks.index(slow.rank)) if slow and slow.rank in self._ranks else None

    async def leave(self, reason: str) -> None:
        """Say goodbye. What was sent is still delivered, as the lanes remain."""
        self._say_goodbye(reason)

    def _say_goodbye(self, reason: str) -> None:
        if self._left:
            return
        self._left = True
        left = RingClosed("this group has been left while a call was still open; await every call")
        if self.endpoint is not None:
            self.endpoint.withdraw_all(left)
        self.dispatcher.say_goodbye(reason)
        self.dispatcher.close(left)
        self._watch.rest()
        self._ring.subgroups.remove(self._epoch)
