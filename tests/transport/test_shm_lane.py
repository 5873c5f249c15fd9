"""Lanes with shared memory, beyond the contract of all lanes (test_lane.py, test_lane_on_wires.py)."""

import asyncio
from typing import Any

import pytest

from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import HEADER_BYTES, REFERENCE, SPILLED, Header
from ringwide.transport.lane import Lane
from ringwide.transport.shm_lane import INLINE_BYTES, SharedLane
from transport.wire import (
    SMALL_ARENA,
    SMALL_BUFFER_BYTES,
    Ends,
    Listener,
    OwnedPayload,
    Wiring,
    header_of,
    lanes,
    pattern,
    send,
    send_owned,
)

LARGE_BYTES = SMALL_ARENA.slot_bytes


def count_socket_bytes(ends: Ends) -> list[int]:
    """How much goes through the socket, from now on."""
    wire, counts = ends.wires[0], []
    sending = wire.send

    def send_and_count(views: Any) -> int:
        counts.append(sending(views))
        return counts[-1]

    wire.send = send_and_count  # type: ignore[misc, method-assign]
    return counts


@pytest.mark.parametrize(
    ("nbytes", "by_socket"),
    [(INLINE_BYTES, INLINE_BYTES), (INLINE_BYTES + 1, REFERENCE.size), (LARGE_BYTES, REFERENCE.size)],
)
async def test_what_is_large_does_not_go_through_the_socket(nbytes: int, by_socket: int) -> None:
    async with lanes(wiring=Wiring.MEMORY) as ends:
        counts = count_socket_bytes(ends)
        send(ends.here, 1, pattern(nbytes))
        await ends.hearing_there.until_frames(1)
        assert ends.hearing_there.frames == [(1, pattern(nbytes))]
        assert sum(counts) == HEADER_BYTES + by_socket
        assert ends.here.bytes_sent == ends.there.bytes_received == HEADER_BYTES + nbytes


async def test_without_a_free_slot_frames_wait_and_belong_to_the_lane() -> None:
    async with lanes(wiring=Wiring.MEMORY) as ends:
        ends.hearing_there.open = False
        payloads = [OwnedPayload(ends.here, pattern(LARGE_BYTES, seed)) for seed in range(5)]
        for number, owned in enumerate(payloads):
            send_owned(ends.here, number, owned)
        await ends.hearing_there.until(lambda: ends.hearing_there.refusals)
        assert [len(owned.told_at) for owned in payloads] == [1, 1, 0, 0, 0]
        assert ends.here.queued == 3
        for owned in payloads[:2]:
            owned.overwrite()  # it is in a slot, and the caller's again
        ends.hearing_there.open = True
        ends.there.resume()
        await ends.hearing_there.until_frames(5)
        assert ends.hearing_there.frames == [(number, pattern(LARGE_BYTES, number)) for number in range(5)]
        assert [len(owned.told_at) for owned in payloads] == [1] * 5
        assert ends.here.queued == 0


@pytest.mark.parametrize("buffer_bytes", [None, SMALL_BUFFER_BYTES])
async def test_on_an_express_lane_what_finds_no_slot_goes_by_the_socket(buffer_bytes: int | None) -> None:
    """A call may be over before its frames have left, and its rank then away for long: slots must not matter."""
    async with lanes(wiring=Wiring.MEMORY, index=0, buffer_bytes=buffer_bytes) as ends:
        sizes = [INLINE_BYTES + 1, 100, LARGE_BYTES, 5000, 4096 - HEADER_BYTES, 0, 4097, LARGE_BYTES, 30_000] * 3
        for number, nbytes in enumerate(sizes):
            send(ends.here, number, pattern(nbytes, number))
        await ends.hearing_there.until_frames(len(sizes))
        assert ends.hearing_there.frames == [(number, pattern(size, number)) for number, size in enumerate(sizes)]
        assert not ends.here._awaiting_slot  # type: ignore[attr-defined]
        counts = count_socket_bytes(ends)
        send(ends.here, 0, pattern(LARGE_BYTES))
        await ends.hearing_there.until_frames(len(sizes) + 1)
        assert sum(counts) == HEADER_BYTES + REFERENCE.size, "slots are free again"


async def test_what_an_express_lane_has_sent_arrives_though_the_sender_is_gone() -> None:
    async with lanes(wiring=Wiring.MEMORY, index=0) as ends:
        for number in range(2 * SMALL_ARENA.slots):
            send(ends.here, number, pattern(30_000, number))
        assert ends.here.queued == 0
        ends.here.close()
        await ends.hearing_there.until_lost()
        assert ends.hearing_there.frames == [(n, pattern(30_000, n)) for n in range(2 * SMALL_ARENA.slots)]


@pytest.mark.parametrize("payload_bytes", [4096 - HEADER_BYTES - REFERENCE.size, 4096, 4097, 5000])
async def test_a_payload_without_a_slot_may_come_in_pieces(payload_bytes: int) -> None:
    async with lanes(wiring=Wiring.MEMORY, index=0, staging_bytes=4096 + HEADER_BYTES) as ends:
        text = header_of(1, payload_bytes)
        text += REFERENCE.pack(SPILLED) if payload_bytes > INLINE_BYTES else b""
        for byte in text + pattern(payload_bytes) + header_of(2, 0):
            ends.here.socket.send(bytes([byte]))
            ends.there.poll()
        await ends.hearing_there.until_frames(2)
        assert ends.hearing_there.frames == [(1, pattern(payload_bytes)), (2, b"")]


async def test_what_waits_for_a_slot_can_be_forgotten_and_what_has_one_leaves() -> None:
    async with lanes(wiring=Wiring.MEMORY) as ends:
        ends.hearing_there.open = False
        payloads = [OwnedPayload(ends.here, pattern(LARGE_BYTES, seed)) for seed in range(4)]
        for number, owned in enumerate(payloads):
            send_owned(ends.here, number, owned, collective=7)
        ends.here.forget(7)
        for owned in payloads:
            owned.overwrite()
        send(ends.here, 9, b"after")
        ends.hearing_there.open = True
        ends.there.resume()
        await ends.hearing_there.until_frames(3)
        assert ends.hearing_there.frames == [(0, pattern(LARGE_BYTES, 0)), (1, pattern(LARGE_BYTES, 1)), (9, b"after")]
        for number in range(6):  # all slots are there again
            send(ends.here, number, pattern(LARGE_BYTES, number))
        await ends.hearing_there.until_frames(9)


async def test_a_lane_may_be_closed_while_frames_wait_for_a_slot() -> None:
    async with lanes(wiring=Wiring.MEMORY) as ends:
        ends.hearing_there.open = False
        for number in range(4):
            send(ends.here, number, pattern(LARGE_BYTES))
        assert ends.here.queued
        ends.here.close()
        assert ends.here.queued == 0
        ends.hearing_there.open = True
        ends.there.resume()
        assert isinstance(await ends.hearing_there.until_lost(), EOFError)


class Glancing(Listener):
    """Reads a payload where it lies, as a sum does."""

    where: object = None

    def landing(self, lane: Lane, header: Header, here: memoryview | None = None) -> memoryview | None:
        return here or lane.scratch.take(header.payload_bytes)

    def arrived(self, lane: Lane, header: Header, payload: memoryview) -> None:
        self.where = payload.obj
        super().arrived(lane, header, payload)


async def test_a_payload_can_be_read_where_it_lies() -> None:
    async with lanes(wiring=Wiring.MEMORY) as ends:
        hearing = ends.hearing_there = Glancing()
        ends.there._events = hearing
        for number in range(3 * SMALL_ARENA.slots):
            send(ends.here, number, pattern(LARGE_BYTES, number))
        await hearing.until_frames(3 * SMALL_ARENA.slots)
        assert hearing.frames == [(n, pattern(LARGE_BYTES, n)) for n in range(3 * SMALL_ARENA.slots)]
        assert hearing.where is ends.wires[1].incoming.memory  # type: ignore[attr-defined]
        send(ends.here, 0, pattern(100))
        await hearing.until_frames(3 * SMALL_ARENA.slots + 1)
        assert hearing.frames[-1] == (0, pattern(100))
        assert hearing.where is not ends.wires[1].incoming.memory, "a small one came by the socket"  # type: ignore[attr-defined]


async def test_a_payload_can_be_made_where_the_peer_reads_it() -> None:
    async with lanes(wiring=Wiring.MEMORY) as ends:
        room = ends.here.reserve(LARGE_BYTES)
        assert room is not None
        room[:] = pattern(LARGE_BYTES)
        ends.here.send_reserved(header_of(1, LARGE_BYTES))
        await ends.hearing_there.until_frames(1)
        assert ends.hearing_there.frames == [(1, pattern(LARGE_BYTES))]
        assert ends.here.reserve(INLINE_BYTES) is None, "that goes by the socket"
        assert ends.here.reserve(LARGE_BYTES + 1) is None, "there is no such slot"


async def test_nothing_overtakes_what_waits() -> None:
    async with lanes(wiring=Wiring.MEMORY) as ends:
        ends.hearing_there.open = False
        for number in range(3):
            send(ends.here, number, pattern(LARGE_BYTES, number))
        assert ends.here.reserve(LARGE_BYTES) is None
        send(ends.here, 3, b"small")
        ends.hearing_there.open = True
        ends.there.resume()
        await ends.hearing_there.until_frames(4)
        assert [number for number, _ in ends.hearing_there.frames] == [0, 1, 2, 3]


@pytest.mark.parametrize("slot", [0, SMALL_ARENA.slots, SPILLED - 1])
async def test_a_reference_to_nothing_ends_the_lane(slot: int) -> None:
    async with lanes(wiring=Wiring.MEMORY) as ends:
        ends.here.socket.send(header_of(1, LARGE_BYTES) + REFERENCE.pack(slot))
        error = await ends.hearing_there.until_lost()
        assert isinstance(error, RemoteProtocolError)
        assert f"slot {slot}, where there can be none" in str(error)


async def test_a_reference_may_come_in_pieces() -> None:
    async with lanes(wiring=Wiring.MEMORY) as ends:
        assert isinstance(ends.here, SharedLane)
        slot = ends.here._outgoing.take()
        assert slot is not None
        ends.here._outgoing.view(slot, 5000)[:] = pattern(5000)
        for byte in header_of(1, 5000) + REFERENCE.pack(slot):
            ends.here.socket.send(bytes([byte]))
            await asyncio.sleep(0)
        await ends.hearing_there.until_frames(1)
        assert ends.hearing_there.frames == [(1, pattern(5000))]
