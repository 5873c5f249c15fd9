"""Ranks of hivemind: `python -m bench.speed.hivemind_worker RANKS`. Its butterfly all-reduce of a torch tensor.

A call is one run of its `AllReduceRunner` between peers that know each other, and the addition of the difference that
it returns, as its averager does. Finding a group, which takes an averager seconds, is left out. It knows means only.
"""

import asyncio
import functools
import itertools
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, AsyncIterator  # noqa: UP035, hivemind knows a stream by typing's name only

import torch
from hivemind.averaging.allreduce import AllReduceRunner
from hivemind.p2p import P2P, P2PContext, PeerID, ServicerBase
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import achain, as_aiter
from hivemind.utils.multiaddr import Multiaddr

from bench.speed.conversation import Leader, Message, fork_ranks, serve_awaiting
from bench.speed.turns import time_awaited_calls

CALL_SECONDS = 60
LISTEN = "/ip4/127.0.0.1/tcp/0"


class Averager(ServicerBase):
    """One peer, with one all-reduce after the other. Parts of the next may come before this peer has begun it."""

    def __init__(self, p2p: P2P) -> None:
        self._p2p = p2p
        self._peers: list[PeerID] = []
        self._numbers = itertools.count()
        self._runs: dict[bytes, asyncio.Future[AllReduceRunner]] = {}

    async def carry_out(self, order: Message) -> Message:
        if order["do"] == "join":
            return await self._join(order)
        tensor = torch.empty(order["bytes"] // 4)
        mine = float(self._peers.index(self._p2p.peer_id) + 1)
        ranks = len(self._peers)
        call = functools.partial(self._average, tensor)  # a mean that is right stays the same, filled again or not
        seconds = await time_awaited_calls(order["calls"], ranks, lambda: tensor.fill_(mine), call)
        if not torch.allclose(tensor, torch.tensor((ranks + 1) / 2), rtol=1e-4):
            raise ArithmeticError(f"a wrong mean: {tensor.min()} to {tensor.max()} instead of {(ranks + 1) / 2:g}")
        return {"seconds": seconds}

    async def _join(self, order: Message) -> Message:
        own = str(self._p2p.peer_id)
        addresses = [Multiaddr(address) for address in order["addresses"]]
        self._peers = [PeerID.from_base58(address["p2p"]) for address in addresses]
        await self.add_p2p_handlers(self._p2p)
        for address in addresses:
            if address["p2p"] != own:
                await self._p2p._client.connect(
                    PeerID.from_base58(address["p2p"]), [address.decapsulate(f"/p2p/{address['p2p']}")]
                )
        return {"versions": {"hivemind": version("hivemind")}}

    async def _average(self, tensor: torch.Tensor) -> None:
        group = next(self._numbers).to_bytes(8, "big")
        runner = AllReduceRunner(
            p2p=self._p2p,
            servicer_type=Averager,
            prefix=None,
            group_id=group,
            tensors=[tensor],
            ordered_peer_ids=self._peers,
            peer_fractions=tuple(1 / len(self._peers) for _ in self._peers),
        )
        self._run(group).set_result(runner)
        async with asyncio.timeout(CALL_SECONDS):
            async for difference in runner:
                tensor.add_(difference)
        self._runs.pop(group)

    def _run(self, group: bytes) -> "asyncio.Future[AllReduceRunner]":
        return self._runs.setdefault(group, asyncio.get_running_loop().create_future())

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        request = await anext(stream)
        runner = await self._run(request.group_id)
        async for message in runner.rpc_aggregate_part(achain(as_aiter(request), stream), context):
            yield message


async def serve_rank(rank: int) -> None:
    p2p: Any = await P2P.create(host_maddrs=[LISTEN], idle_timeout=3600)
    try:
        address = (await p2p.get_visible_maddrs())[0]
        await serve_awaiting(Leader(rank, str(address)), Averager(p2p).carry_out)
    finally:
        await p2p.shutdown()
        remove_sockets(p2p)


def remove_sockets(p2p: Any) -> None:
    """Which hivemind leaves behind."""
    for address in (p2p._daemon_listen_maddr, p2p._client_listen_maddr):
        Path("/", address["unix"]).unlink(missing_ok=True)


def run_rank(rank: int) -> None:
    torch.set_num_threads(1)
    asyncio.run(serve_rank(rank))


if __name__ == "__main__":
    fork_ranks(int(sys.argv[1]), run_rank)
