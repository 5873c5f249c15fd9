"""Lanes on wires that keep bytes: those wait in memory, where no kernel reports them."""

import asyncio
import sys
import time
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any

import pytest

from ringwide.errors import CorruptFrame, RemoteProtocolError
from ringwide.protocol.frame import HEADER_BYTES, seal
from ringwide.transport.lane import Lane
from transport.wire import (
    SMALL_BUFFER_BYTES,
    OwnedPayload,
    Wiring,
    header_of,
    lane_and_raw_socket,
    lanes,
    pattern,
    send,
    send_owned,
)

EXPRESS: dict[str, Any] = {"index": 0, "staging_bytes": 64 * 1024}
BULK: dict[str, Any] = {"index": 1, "staging_bytes": 0}
MORE_THAN_THE_KERNEL_TAKES = 200_000
"""With small buffers; and little enough for a wire to take it at once."""

every_wiring = pytest.mark.parametrize("wiring", Wiring, ids=lambda wiring: wiring.value)
keeping_wiring = pytest.mark.parametrize("wiring", [Wiring.TLS, Wiring.ENCRYPTED], ids=lambda wiring: wiring.value)
either_kind = pytest.mark.parametrize("kind", [EXPRESS, BULK], ids=["express", "bulk"])


@every_wiring
@either_kind
async def test_what_was_read_from_the_kernel_is_heard_although_nothing_follows(
    wiring: Wiring, kind: dict[str, Any]
) -> None:
    """All of it comes in one piece, more than one wake looks at."""
    async with lanes(wiring=wiring, **kind) as ends:
        for number in range(300):
            send(ends.here, number, b"")
        await ends.hearing_there.until_frames(300)
        assert [number for number, _ in ends.hearing_there.frames] == list(range(300))


@every_wiring
async def test_a_lane_of_many_frames_lets_others_have_their_turn(wiring: Wiring) -> None:
    async with lanes(wiring=wiring, **BULK) as ends:
        for number in range(300):
            send(ends.here, number, b"")
        await ends.hearing_there.until_frames(1)
        assert len(ends.hearing_there.frames) < 300
        await ends.hearing_there.until_frames(300)


@every_wiring
async def test_what_waits_in_memory_behind_a_pause_is_heard_after_it(wiring: Wiring) -> None:
    async with lanes(wiring=wiring, **BULK) as ends:
        hearing = ends.hearing_there
        for round_ in range(5):  # what is left in memory by one pause must not be lost by the next
            hearing.open = False
            payloads = [pattern(1000, round_ + seed) for seed in range(12)]
            hearing.refusals = 0
            for number, payload in enumerate(payloads):
                send(ends.here, number, payload)
            await hearing.until(lambda: hearing.refusals)
            for _ in range(5):
                await asyncio.sleep(0)
            assert hearing.frames == []
            hearing.open = True
            ends.there.resume()
            await hearing.until_frames(len(payloads))
            assert hearing.frames == list(enumerate(payloads))
            hearing.frames.clear()


@keeping_wiring
async def test_what_a_wire_keeps_counts_as_queued_and_leaves_when_there_is_room(wiring: Wiring) -> None:
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES) as ends:
        owned = OwnedPayload(ends.here, pattern(MORE_THAN_THE_KERNEL_TAKES))
        send_owned(ends.here, 1, owned)
        assert owned.told_at == [HEADER_BYTES + MORE_THAN_THE_KERNEL_TAKES], "encrypted, it is a copy"
        assert ends.wires[0].unsent
        assert ends.here.queued == 1
        owned.overwrite()
        await ends.hearing_there.until_frames(1)
        assert ends.hearing_there.frames == [(1, pattern(MORE_THAN_THE_KERNEL_TAKES))]
        assert ends.here.queued == 0
        send(ends.here, 2, b"the lane works on")
        await ends.hearing_there.until_frames(2)


@keeping_wiring
async def test_a_frame_that_the_wire_has_taken_leaves_whole_although_it_is_forgotten(wiring: Wiring) -> None:
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES) as ends:
        taken, waiting = (OwnedPayload(ends.here, pattern(MORE_THAN_THE_KERNEL_TAKES, seed)) for seed in (1, 2))
        send_owned(ends.here, 1, taken, collective=7)
        send_owned(ends.here, 2, waiting, collective=7)
        assert ends.wires[0].unsent
        ends.here.forget(7)
        taken.overwrite()
        waiting.overwrite()
        send(ends.here, 3, b"after")
        await ends.hearing_there.until_frames(2)
        assert ends.hearing_there.frames == [(1, pattern(MORE_THAN_THE_KERNEL_TAKES, 1)), (3, b"after")]
        assert waiting.told_at == []


@pytest.mark.parametrize(
    "wiring", [wiring for wiring in Wiring if wiring is not Wiring.MEMORY], ids=lambda wiring: wiring.value
)
async def test_a_lane_may_be_closed_with_bytes_unsent(wiring: Wiring) -> None:
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES) as ends:
        send(ends.here, 1, pattern(MORE_THAN_THE_KERNEL_TAKES))
        assert ends.here.queued
        ends.here.close()
        assert ends.here.queued == 0, "or whoever waits for it would wait in vain"
        assert isinstance(await ends.hearing_there.until_lost(), EOFError)
        assert ends.hearing_there.frames == []
        assert ends.hearing_here.losses == []


@every_wiring
@pytest.mark.parametrize("count", [1, 40])
async def test_a_reset_that_comes_together_with_frames_is_reported_after_them(wiring: Wiring, count: int) -> None:
    async with lanes(wiring=wiring, **BULK) as ends:
        await asyncio.sleep(0)
        send(ends.here, 1, b"what the other side will not have read")
        for number in range(count):
            send(ends.there, number, b"last words")
        while ends.there.transport == "tcp" and in_flight(ends.there):  # a reset would take them along
            time.sleep(0.001)  # noqa: ASYNC251 - nobody may read meanwhile
        ends.there.close()  # with bytes unread: that is a reset, right behind the frames
        lost = await ends.hearing_here.until_lost()
        assert isinstance(lost, EOFError if wiring is Wiring.TLS else ConnectionResetError), "TLS has said so before"
        assert ends.hearing_here.frames == [(number, b"last words") for number in range(count)]


def in_flight(lane: Lane) -> int:
    """Bytes that the other kernel has not confirmed."""
    return int.from_bytes(ioctl(lane.socket.fileno(), TIOCOUTQ, bytes(4)), sys.byteorder)


# Sealed lanes


def sealed(number: int, payload: bytes, sealed_as: int) -> bytes:
    return seal(header_of(number, len(payload)), payload, sealed_as) + payload


FRAMES = [sealed(number, pattern(100, number), number) for number in range(3)]
FLIPPED = bytearray(FRAMES[1])
FLIPPED[HEADER_BYTES + 50] ^= 1


@pytest.mark.parametrize(
    "wrong",
    [
        [bytes(FLIPPED)],
        [FRAMES[0]],
        [FRAMES[2], FRAMES[1]],
        [FRAMES[1][: HEADER_BYTES + 50], FRAMES[2]],
        [header_of(1, 0)],
    ],
    ids=["a bit flipped", "repeated", "swapped", "cut in the middle", "not sealed"],
)
async def test_damage_on_a_sealed_lane_is_reported_once_and_nothing_of_it_is_used(wrong: list[bytes]) -> None:
    async with lane_and_raw_socket(sealed=True) as (lane, listener, raw_socket):
        raw_socket.send(b"".join([FRAMES[0], *wrong]))
        assert isinstance(await listener.until_lost(), CorruptFrame)
        assert listener.frames == [(0, pattern(100, 0))]
        assert lane.closed


async def test_a_seal_on_a_lane_that_has_none_is_refused() -> None:
    async with lane_and_raw_socket() as (_, listener, raw_socket):
        raw_socket.send(FRAMES[0])
        lost = await listener.until_lost()
        assert isinstance(lost, RemoteProtocolError)
        assert not isinstance(lost, CorruptFrame)
