"""A ring on sockets that listened before it was joined: the kernel chose their ports, and the others were told."""

import asyncio
import os
import socket
from pathlib import Path

import numpy as np
import pytest

import ringwide
from local_ring import PATIENCE_SECONDS, free_peers


def opened(count: int) -> tuple[list[socket.socket], list[str]]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    return listeners, [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]


async def test_ranks_meet_on_ports_that_the_kernel_chose() -> None:
    listeners, peers = opened(3)

    async def one_rank(rank: int) -> None:
        async with ringwide.join(rank=rank, peers=peers, listener=listeners[rank]) as ring:
            total = await ring.allreduce(np.full(8, float(rank)), op="sum")
            assert total.tolist() == [3.0] * 8
            await ring.barrier()

    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*map(one_rank, range(3)))
    assert [listener.fileno() for listener in listeners] == [-1, -1, -1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"rank": 1}, "rank 1 is out of range"),
        ({"peers": ["nonsense"]}, "it needs a host and a port"),
        ({"config": ringwide.RingConfig(listen="127.0.0.1:29500")}, "listen: 127.0.0.1:29500: but a listening socket"),
    ],
)
async def test_a_listener_is_closed_whatever_is_wrong(arguments: dict[str, object], problem: str) -> None:
    (listener,), peers = opened(1)
    with pytest.raises(ringwide.ConfigError, match=problem):
        async with ringwide.join(**{"rank": 0, "peers": peers, "listener": listener, **arguments}):  # type: ignore[arg-type]
            pytest.fail("it joined")
    assert listener.fileno() == -1


async def test_a_listener_beyond_loopback_needs_a_key_or_a_word() -> None:
    await _alone_everywhere(ringwide.RingConfig(insecure=True))
    with pytest.raises(ringwide.ConfigError, match="beyond loopback"):
        await _alone_everywhere(ringwide.RingConfig())


async def _alone_everywhere(config: ringwide.RingConfig) -> None:
    listener = socket.create_server(("0.0.0.0", 0))
    peers = [f"127.0.0.1:{listener.getsockname()[1]}"]
    async with ringwide.join(rank=0, peers=peers, config=config, listener=listener):
        pass


def listening() -> list[tuple[str, int]]:
    """Ports at which this process listens, and those of UDP."""
    sockets = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    found = []
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if f"socket:[{rest[5]}]" in sockets and (state == "0A" or kind.startswith("udp")):
                found.append((kind, int(local.rpartition(":")[2], 16)))
    return sorted(found)


async def test_a_rank_listens_on_one_port_whatever_its_lanes() -> None:
    """Firewalls are told so."""
    before, peers = listening(), free_peers(2)

    async def one_rank(rank: int) -> list[tuple[str, int]]:
        config = ringwide.RingConfig(lanes=3, messages=True, same_host="tcp")
        async with ringwide.join(rank=rank, peers=peers, config=config) as ring:
            await ring.barrier()
            seen = listening()
            await ring.barrier()
            return seen

    async with asyncio.timeout(PATIENCE_SECONDS):
        seen = await asyncio.gather(*map(one_rank, range(2)))
    ports = [("tcp", int(peer.rpartition(":")[2])) for peer in peers]
    assert [sorted(set(each) - set(before)) for each in seen] == [sorted(ports)] * 2


async def test_nobody_dials_the_last_rank() -> None:
    """So it may be behind NAT: at its address in the list, one for documents, nobody answers."""
    [first, inner] = free_peers(2)
    peers = [first, "203.0.113.7:29500"]

    async def one_rank(rank: int) -> None:
        config = ringwide.RingConfig(listen=inner if rank == 1 else None, start_timeout_seconds=20)
        async with ringwide.join(rank=rank, peers=peers, config=config) as ring:
            assert (await ring.allreduce(np.full(8, float(rank)))).tolist() == [0.5] * 8

    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*map(one_rank, range(2)))
