"""Unknown clients: how many at a time, for how long, at which pace; and ranks get in all the same."""

import asyncio
import gc
import logging
import os
import random
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringwide
from bootstrap.raw_clients import CHALLENGE, HEADER, HELLO, PATIENCE_SECONDS, WELCOME, frame, rest, sealed, visiting
from bootstrap.test_form_ring import formed_ring, member, outcomes_of
from bootstrap.test_handshake_with_key import challenge, say_hello
from local_ring import error_of, free_peers
from ringwide.bootstrap import accept, form_ring
from ringwide.bootstrap.accept import Acceptor, pause_after

pytestmark = pytest.mark.usefixtures("nothing_left_behind", "silent_ones_are_seen")


class Seats:
    """Counts who is seated, at most at once and in all, and who has to go for another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.in_all = self.sent_away = 0
        seat, make_room = Acceptor._start, Acceptor._evict

        def counted(room: Acceptor, sock: object) -> None:
            seat(room, sock)  # type: ignore[arg-type]
            self.most, self.in_all = max(self.most, len(room._pending)), self.in_all + 1

        def room_made(room: Acceptor) -> None:
            before = len(room._pending)
            make_room(room)
            self.sent_away += before - len(room._pending)

        monkeypatch.setattr(Acceptor, "_start", counted)
        monkeypatch.setattr(Acceptor, "_evict", room_made)


@asynccontextmanager
async def silent_visitors(peer: str, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    async with AsyncExitStack() as stack:
        yield [(await stack.enter_async_context(visiting(peer)))[0] for _ in range(count)]


def test_the_limits_are_those_of_the_document() -> None:
    assert (accept.PENDING_LIMIT, form_ring.HANDSHAKE_SECONDS) == (64, 5)


@pytest.mark.parametrize("with_key", [False, True])
async def test_a_rank_gets_in_while_strangers_hold_all_places(
    with_key: bool, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form_ring, "HANDSHAKE_SECONDS", 100 * PATIENCE_SECONDS)
    monkeypatch.setattr(accept, "PENDING_LIMIT", 3)
    monkeypatch.setattr(accept, "GRACE_SECONDS", 0.2)
    seats = Seats(monkeypatch)
    peers, settings = free_peers(2), {"key_file": key_file} if with_key else {}
    first = asyncio.create_task(member(0, peers, **settings))
    async with silent_visitors(peers[0], 10) as visitors:
        assert await outcomes_of(first, member(1, peers, **settings)) == [[0, 1]] * 2
        assert [await rest(reader) for reader in visitors] == [b""] * 10
    assert seats.most == 3


async def test_a_rank_far_away_gets_in_however_many_say_nothing(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer takes longer than all of them together: it has begun well, so each of them goes before it."""
    monkeypatch.setattr(form_ring, "HANDSHAKE_SECONDS", 100 * PATIENCE_SECONDS)
    monkeypatch.setattr(accept, "PENDING_LIMIT", 2)
    monkeypatch.setattr(accept, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(accept, "ANSWERED_GRACE_SECONDS", 10 * PATIENCE_SECONDS)
    peers = free_peers(2)
    first = asyncio.create_task(member(0, peers, key_file=key_file))

    async def while_strangers_come_and_go() -> None:
        async with silent_visitors(peers[0], 20) as visitors:
            assert [await rest(reader) for reader in visitors[:-1]] == [b""] * 19

    async with visiting(peers[0]) as streams:
        kind, _ = await say_hello(streams, peers, key_file, of=challenge(), before_hello=while_strangers_come_and_go)
        assert kind == WELCOME
    assert isinstance(await error_of(first), ringwide.PeerLost), "it was let in, and then it went"


async def test_who_begins_well_and_says_no_more_keeps_no_rank_out(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form_ring, "HANDSHAKE_SECONDS", 100 * PATIENCE_SECONDS)
    monkeypatch.setattr(accept, "PENDING_LIMIT", 3)
    monkeypatch.setattr(accept, "ANSWERED_GRACE_SECONDS", 0.2)
    peers = free_peers(2)
    first = asyncio.create_task(member(0, peers, key_file=key_file))
    async with AsyncExitStack() as stack:
        for _ in range(7):
            _, writer = await stack.enter_async_context(visiting(peers[0]))
            writer.write(frame(CHALLENGE, challenge()))
        assert await outcomes_of(first, member(1, peers, key_file=key_file)) == [[0, 1]] * 2


async def test_ranks_in_a_crowd_do_not_push_each_other_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "PENDING_LIMIT", 1)
    monkeypatch.setattr(accept, "GRACE_SECONDS", 10 * PATIENCE_SECONDS)
    seats, size = Seats(monkeypatch), 4
    peers = free_peers(size)
    assert await outcomes_of(*(member(rank, peers) for rank in range(size))) == [[*range(size)]] * size
    assert (seats.most, seats.sent_away) == (1, 0)


async def test_whoever_says_too_little_for_too_long_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that says a byte now and then: the time is for the whole handshake."""
    peers = free_peers(2)
    async with formed_ring(peers), AsyncExitStack() as stack:
        monkeypatch.setattr(form_ring, "HANDSHAKE_SECONDS", 0.2)
        reader, writer = await stack.enter_async_context(visiting(peers[0]))
        async with asyncio.timeout(PATIENCE_SECONDS):
            for byte in frame(HELLO, b"{}" * 2000):
                writer.write(bytes([byte]))
                if reader.at_eof() or reader.exception():  # a reset, if a byte of ours was still unread
                    return
                await asyncio.sleep(0.02)
        pytest.fail("it was heard to the end")


async def test_a_formed_ring_takes_its_time_with_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "PAUSE_SECONDS", 10 * PATIENCE_SECONDS)
    peers = free_peers(2)
    async with formed_ring(peers):
        seats = Seats(monkeypatch)
        for _ in range(2):
            async with silent_visitors(peers[0], 20), visiting(peers[0]) as (_, writer):
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                await writer.drain()
        assert seats.in_all <= 1


def test_the_dearer_a_greeting_the_longer_the_next_waits() -> None:
    assert [pause_after(cost) for cost in (0, 0.0005, 0.0064, 10)] == [0.02, 0.02, pytest.approx(0.128), 1.0]


async def test_a_mistake_of_ours_costs_a_stranger_its_connection_and_us_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def mistaken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody thought of it")

    monkeypatch.setattr(accept, "PAUSE_SECONDS", 0.0)
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    peers = free_peers(2)
    async with formed_ring(peers):
        monkeypatch.setattr(form_ring, "respond", mistaken)
        for _ in range(5):
            await one_stranger(peers[0], b"")  # which waits until the connection is closed
    gc.collect()
    assert unhandled == []
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    told = re.escape("from 127.0.0.1: an internal error, ZeroDivisionError('nobody thought of it') at ")
    assert re.search(rf"turned away a connection {told}.*test_accept.py:\d+$", line)


# -- all kinds at once, while the ring works


def claims(nbytes: int, kind: int = HELLO) -> bytes:
    """A header that promises very much, wherever there is a place to promise it."""
    fields = [b"RW", 2, kind, 0, 0, 2**16 - 1, 2**32 - 1, 2**32 - 1, nbytes, nbytes, min(nbytes, 2**32 - 1), nbytes]
    return sealed(HEADER.pack(*fields))


def noises(chance: random.Random) -> list[bytes]:
    return [
        chance.randbytes(chance.randint(1, 5000)),
        b"GET / HTTP/1.1\r\nHost: ring.example\r\nUser-Agent: x\r\n\r\n",
        bytes.fromhex("1603010200010001fc0303") + chance.randbytes(512),
        *(claims(2**exponent, kind) for exponent in (31, 32, 63) for kind in (HELLO, 16)),
        frame(CHALLENGE, challenge()),  # and then nothing more
        frame(CHALLENGE, challenge())[: chance.randint(1, 60)],
        frame(CHALLENGE, challenge()) + frame(HELLO, b"{}" + b"00" * 32),
        frame(CHALLENGE, b"[" * 4000),
        b"",
    ]


@pytest.mark.parametrize("with_key", [False, True])
async def test_strangers_of_all_kinds_leave_no_trace(
    with_key: bool, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "PAUSE_SECONDS", 0.0)
    chance, peers = random.Random(5), free_peers(2)
    config = ringwide.RingConfig(**({"key_file": key_file} if with_key else {}))
    over, formed = asyncio.Event(), asyncio.Barrier(3)

    async def work(rank: int) -> int:
        """Collectives until the strangers have gone; how many were right."""
        async with ringwide.join(rank=rank, peers=peers, config=config) as ring:
            await formed.wait()
            right, last = 0, np.zeros(1, np.int64)
            while not last[0]:
                numbers = np.full(20_000, 1.0 + rank)
                await ring.allreduce(numbers, op="sum")
                assert (numbers == 3.0).all()
                right += 1
                last[0] = rank == 0 and over.is_set()
                await ring.broadcast(last, root=0)
            return right

    async def pester() -> None:
        await formed.wait()
        monkeypatch.setattr(form_ring, "HANDSHAKE_SECONDS", 0.2)
        await one_stranger(peers[0], b"")  # the first may cost what is then kept
        seats, before = Seats(monkeypatch), resources()
        for _ in range(3):
            await asyncio.gather(*(one_stranger(chance.choice(peers), noise) for noise in noises(chance)))
        assert seats.in_all == 3 * len(noises(chance))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while resources() != before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # uvloop closes a moment later
        over.set()

    first, second, _ = await asyncio.gather(work(0), work(1), pester())
    assert first == second > 0


async def one_stranger(peer: str, noise: bytes) -> None:
    async with visiting(peer) as (reader, writer):
        writer.write(noise)
        await rest(reader)


def resources() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
