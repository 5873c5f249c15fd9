"""Shared memory between ranks on one machine: when it is used, and that wrong memory is refused."""

import asyncio
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringwide
from local_ring import free_peers, on_every_rank
from ringwide import Ring, RingConfig
from ringwide.bootstrap.form_ring import RingFormation
from ringwide.bootstrap.handshake import HandshakeTerms, can_share_memory, exchange_memory
from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.protection import Protection
from ringwide.bootstrap.untrusted_connection import HungUp, UntrustedConnection
from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import FrameKind
from ringwide.protocol.handshake import handshake_frame
from ringwide.transport.shm_arena import ArenaShape, ArenaWriter
from ringwide.transport.wire import PlainWire, Wire

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

SHAPE = ArenaShape(4, 4096)
PATIENCE_SECONDS = 60


async def ways(ring: Ring) -> set[str]:
    return {link.transport for link in ring.statistics().links}


@pytest.mark.parametrize(
    ("settings", "way"),
    [({}, "memory"), ({"lanes": 3}, "memory"), ({"checksum": True}, "unix"), ({"same_host": "unix"}, "unix")],
)
async def test_memory_is_shared_where_nothing_speaks_against_it(settings: dict[str, Any], way: str) -> None:
    assert await on_every_rank(2, ways, **settings) == [{way}] * 2


async def test_one_that_does_not_want_to_is_met_by_the_socket() -> None:
    peers, both = free_peers(2), asyncio.Barrier(2)

    async def one(rank: int, same_host: Any) -> set[str]:
        async with ringwide.join(rank=rank, peers=peers, config=RingConfig(same_host=same_host)) as ring:
            await both.wait()
            return await ways(ring)

    assert await asyncio.gather(one(0, "unix"), one(1, "auto")) == [{"unix"}] * 2


@pytest.mark.parametrize(
    ("spare", "express", "bulk"), [(15, "unix", "unix"), (16, "unix", "memory"), (32, "memory", "memory")]
)
async def test_one_that_may_not_open_many_files_shares_less(
    spare: int, express: str, bulk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bulk lanes take eight, the express lanes to two ranks another eight, and as many stay for others."""
    monkeypatch.setattr("ringwide.runtime.connections.descriptors_to_spare", lambda: spare)

    async def act(ring: Ring) -> set[tuple[str, ...]]:
        await sums(ring)
        return {tuple(lane.transport for lane in link.lanes[:2]) for link in ring.statistics().links}

    assert await on_every_rank(3, act) == [{(express, bulk)}] * 3


async def test_a_system_without_such_memory_uses_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    can_share_memory.cache_clear()
    try:
        assert await on_every_rank(2, ways) == [{"unix"}] * 2
    finally:
        can_share_memory.cache_clear()


async def sums(ring: Ring) -> bool:
    """Many calls, each of many segments, and each with numbers of its own."""
    chance = np.random.default_rng(ring.rank)
    for call in range(6):
        mine = chance.integers(-1000, 1000, 50_000).astype(np.float64)
        everybody = [np.asarray(part) for part in await ring.all_gather(mine)]
        await ring.allreduce(mine, op="sum")
        if not np.array_equal(mine, np.sum(everybody, axis=0)):
            raise AssertionError(f"call {call} has wrong sums")
    return True


@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("size", [2, 3, 5])
async def test_a_ring_goes_round_however_few_slots_there_are(
    size: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that held one slot while they wait for another would wait for each other."""
    monkeypatch.setattr("ringwide.transport.shm_arena.FEWEST_SLOTS", slots)
    monkeypatch.setattr("ringwide.transport.shm_arena.MOST_SLOTS", slots)
    assert all(await on_every_rank(size, sums, segment_bytes=8192, algorithm="ring"))


async def test_an_array_may_be_changed_when_the_call_has_returned() -> None:
    async def act(ring: Ring) -> None:
        for call in range(20):
            mine = np.full(40_000, ring.rank + call, np.float32)
            await ring.allreduce(mine, op="sum")
            assert set(mine) == {sum(range(ring.size)) + ring.size * call}
            mine[:] = np.nan

    await on_every_rank(3, act, segment_bytes=8192, algorithm="ring")


# -- what a peer hands over


Hand = Callable[[socket.socket], object]


def no_files(sock: socket.socket) -> object:
    return sock.send(b"\0")


def too_few(sock: socket.socket) -> object:
    outgoing = ArenaWriter(SHAPE)
    try:
        return socket.send_fds(sock, [b"\0"], outgoing.files[:1])
    finally:
        outgoing.close()


def too_many(sock: socket.socket) -> object:
    outgoing = ArenaWriter(SHAPE)
    try:
        return socket.send_fds(sock, [b"\0"], [*outgoing.files, *outgoing.files])
    finally:
        outgoing.close()


def other_memory(sock: socket.socket) -> object:
    outgoing = ArenaWriter(ArenaShape(5, 4096))
    try:
        return socket.send_fds(sock, [b"\0"], outgoing.files)
    finally:
        outgoing.close()


def another_word(sock: socket.socket) -> object:
    return sock.send(b"R")


@pytest.mark.parametrize("hand", [no_files, too_few, too_many, other_memory, another_word])
async def test_what_is_not_such_memory_is_refused_and_closed(hand: Hand) -> None:
    here, there = socket.socketpair()
    before = set(os.listdir("/proc/self/fd"))
    with here, there:
        here.setblocking(False)
        hand(there)
        with pytest.raises(RemoteProtocolError, match="shares"):
            await asyncio.wait_for(exchange_memory(UntrustedConnection(PlainWire(here)), SHAPE), PATIENCE_SECONDS)
        there.close()
        here.close()
        assert set(os.listdir("/proc/self/fd")) < before


async def test_one_that_hangs_up_instead_is_gone() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        sharing_ = asyncio.create_task(exchange_memory(UntrustedConnection(PlainWire(here)), SHAPE))
        await asyncio.sleep(0)
        there.recv(1)
        there.close()
        with pytest.raises(HungUp):
            await asyncio.wait_for(sharing_, PATIENCE_SECONDS)


async def test_of_two_that_come_as_one_rank_at_the_same_time_only_one_is_let_in() -> None:
    """Both are welcome, since neither has joined yet; then the first hands over its memory, and has."""
    terms = [HandshakeTerms(rank, 2, "", {}, Protection(), lambda lane: SHAPE) for rank in range(2)]
    address, lanes_ = Address("127.0.0.1", 1), list[Wire]()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.setblocking(False)
        listener.bind("")
        listener.listen()
        formation = RingFormation(
            terms=terms[0],
            addresses=[address, address],
            lanes={1: (0, 1)},
            on_lane=lambda peer, lane, wire, sealed: lanes_.append(wire),
            same_host="auto",
        )
        serving = asyncio.create_task(formation.serve(listener))
        joining = asyncio.create_task(formation.run(timeout_seconds=PATIENCE_SECONDS))
        dialed = [await _welcome(listener.getsockname(), terms[1]) for _ in range(2)]
        wires = [await exchange_memory(channel, SHAPE) for channel in dialed]
        try:
            with pytest.raises(ringwide.JoinError, match="each rank must be started once"):
                await joining
            assert len(lanes_) == 1
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            for wire in (*wires, *lanes_):
                wire.close()


async def _welcome(name: bytes, terms: HandshakeTerms) -> UntrustedConnection:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(name)
    sock.setblocking(False)
    channel = UntrustedConnection(PlainWire(sock))
    await channel.send(handshake_frame(FrameKind.HELLO, terms.hello(0, channel).body()))
    assert (await channel.receive()).kind == FrameKind.WELCOME
    return channel


# -- what is left


def test_nothing_is_left_of_a_rank_that_was_killed_in_the_middle() -> None:
    """The memory has no name, so there is nothing to be left; and who survives lets go of it."""
    peers, shm = free_peers(2), set(Path("/dev/shm").iterdir())
    before = set(os.listdir("/proc/self/fd"))
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        asyncio.run(_call_for_ever(peers, writing))
        os._exit(1)
    os.close(writing)
    with pytest.raises(ringwide.PeerLost):
        asyncio.run(_call_until_lost(peers, reading, child))
    os.waitpid(child, 0)
    os.close(reading)
    assert set(Path("/dev/shm").iterdir()) == shm
    assert set(os.listdir("/proc/self/fd")) == before


async def _call_for_ever(peers: list[str], writing: int) -> None:
    async with ringwide.join(rank=1, peers=peers) as ring:
        assert await ways(ring) == {"memory"}
        for _ in range(3):
            await ring.allreduce(np.ones(500_000, np.float32))
        os.write(writing, b".")
        while True:
            await ring.allreduce(np.ones(500_000, np.float32))


async def _call_until_lost(peers: list[str], reading: int, child: int) -> None:
    async with ringwide.join(rank=0, peers=peers) as ring:
        asyncio.get_running_loop().add_reader(reading, os.kill, child, signal.SIGKILL)
        while True:
            await ring.allreduce(np.ones(500_000, np.float32))


async def test_a_forked_child_keeps_nothing_of_it_and_its_parent_does() -> None:
    async def act(ring: Ring) -> None:
        await ring.allreduce(np.ones(500_000, np.float32))
        if ring.rank == 0:
            child = os.fork()
            if not child:
                os._exit(_memories())
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222 - it ends at once
            assert _memories() > 0
        numbers = np.ones(500_000, np.float32)
        await ring.allreduce(numbers, op="sum")
        assert set(numbers) == {2}

    await on_every_rank(2, act)


def _memories() -> int:
    """How often this process refers to memory that ranks share."""
    return len(re.findall("memfd:ringwide", Path("/proc/self/maps").read_text() + " ".join(_files())))


def _files() -> list[str]:
    files = Path("/proc/self/fd")
    return [os.readlink(files / name) for name in os.listdir(files) if (files / name).is_symlink()]
