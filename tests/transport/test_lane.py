"""The contract of a lane, over real TCP connections, for the express kind (staged) and the bulk kind (landed)."""

import asyncio
import logging
import socket
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import HEADER_BYTES, NEWS_LIMIT_BYTES, REFERENCE, FrameKind
from ringwide.transport.lane import Lane
from transport.wire import (
    LIMIT_BYTES,
    PATIENCE_SECONDS,
    SMALL_BUFFER_BYTES,
    OwnedPayload,
    Wiring,
    header_of,
    lane_and_raw_socket,
    lanes,
    pattern,
    send,
    send_owned,
    tcp_pair,
)

MIB = 1024 * 1024
MORE_THAN_BUFFERS = 8 * MIB
EXPRESS: dict[str, Any] = {"index": 0, "staging_bytes": 64 * 1024}
BULK: dict[str, Any] = {"index": 1, "staging_bytes": 0}

every_wiring = pytest.mark.parametrize("wiring", Wiring, ids=lambda wiring: wiring.value)
either_kind = pytest.mark.parametrize("kind", [EXPRESS, BULK], ids=["express", "bulk"])
sizes_around_every_edge = st.lists(
    st.one_of(st.integers(0, 80), st.sampled_from([65_499, 65_500, 65_501, 65_536, 200_000, MIB])),
    min_size=1,
    max_size=12,
)


@every_wiring
@either_kind
@given(sizes=sizes_around_every_edge)
@settings(max_examples=25)
async def test_frames_arrive_whole_and_in_order(wiring: Wiring, kind: dict[str, Any], sizes: list[int]) -> None:
    payloads = [pattern(nbytes, seed) for seed, nbytes in enumerate(sizes)]
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES, **kind) as ends:
        for number, payload in enumerate(payloads):
            send(ends.here, number, payload)
        await ends.hearing_there.until_frames(len(payloads))
        assert ends.hearing_there.frames == list(enumerate(payloads))
        beside = ends.there.bytes_received - sum(map(len, payloads)) - HEADER_BYTES * len(payloads)
        assert beside in range(0, REFERENCE.size * len(payloads) + 1 if wiring is Wiring.MEMORY else 1, REFERENCE.size)


async def until_received(lane: Lane, nbytes: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while lane.bytes_received < nbytes:  # noqa: ASYNC110 - a part of a frame is no event
            await asyncio.sleep(0)


@either_kind
@given(cuts=st.lists(st.integers(1, 4 * HEADER_BYTES), min_size=1, max_size=8))
@settings(max_examples=25)
async def test_any_split_of_the_stream_gives_the_same_frames(kind: dict[str, Any], cuts: list[int]) -> None:
    stream = b"".join(header_of(n, size) + pattern(size, n) for n, size in enumerate([0, 5, 100, 0, 40]))
    async with lanes(**kind) as ends:
        while stream:
            piece, stream = stream[: cuts[0]], stream[cuts[0] :]
            cuts = [*cuts[1:], cuts[0]]
            ends.here.socket.send(piece)
            await until_received(ends.there, ends.there.bytes_received + len(piece))
        assert ends.hearing_there.frames == [(n, pattern(size, n)) for n, size in enumerate([0, 5, 100, 0, 40])]


@every_wiring
@either_kind
async def test_receiving_never_waits_for_sending(wiring: Wiring, kind: dict[str, Any]) -> None:
    there_and_back = pattern(MORE_THAN_BUFFERS, 1), pattern(MORE_THAN_BUFFERS, 2)
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES, **kind) as ends:
        send(ends.here, 1, there_and_back[0])
        send(ends.there, 2, there_and_back[1])
        # Both kernels are full now: if either side finished sending before it received, neither would ever finish.
        assert ends.here.queued
        assert ends.there.queued
        await ends.hearing_there.until_frames(1)
        await ends.hearing_here.until_frames(1)
        assert ends.hearing_there.frames == [(1, there_and_back[0])]
        assert ends.hearing_here.frames == [(2, there_and_back[1])]


def test_peers_that_sent_before_they_received_would_wait_for_each_other() -> None:
    """Why the rule is there: the same two messages, and each side blocks in its send."""
    with tcp_pair(SMALL_BUFFER_BYTES) as ends:
        for sock in ends:
            sock.settimeout(0.1)
            with pytest.raises(TimeoutError):
                sock.sendall(pattern(MORE_THAN_BUFFERS))


@every_wiring
@either_kind
async def test_an_owner_is_told_once_and_only_when_all_its_bytes_have_left(
    wiring: Wiring, kind: dict[str, Any]
) -> None:
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES, **kind) as ends:
        ends.hearing_there.open = False
        payloads = [
            OwnedPayload(ends.here, pattern(size)) for size in (MORE_THAN_BUFFERS, 10, 0, MORE_THAN_BUFFERS, 99)
        ]
        for number, owned in enumerate(payloads):
            send_owned(ends.here, number, owned)
        await ends.hearing_there.until(lambda: ends.hearing_there.refusals)
        assert [owned.told_at for owned in payloads] == [[], [], [], [], []]

        ends.hearing_there.open = True
        ends.there.resume()
        await ends.hearing_there.until_frames(len(payloads))
        left = 0
        for owned in payloads:
            left += HEADER_BYTES + len(owned.memory)
            assert owned.told_at == [left]


@every_wiring
async def test_an_owner_is_told_at_once_if_the_kernel_takes_everything(wiring: Wiring) -> None:
    async with lanes(wiring=wiring) as ends:
        owned = OwnedPayload(ends.here, b"small")
        send_owned(ends.here, 1, owned)
        assert owned.told_at == [HEADER_BYTES + 5]
        await ends.hearing_there.until_frames(1)
        assert len(owned.told_at) == 1


@every_wiring
@either_kind
async def test_a_frame_without_an_owner_is_copied(wiring: Wiring, kind: dict[str, Any]) -> None:
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES, **kind) as ends:
        memories = [bytearray(pattern(MORE_THAN_BUFFERS, 1)), bytearray(pattern(1000, 2))]
        for number, memory in enumerate(memories):
            send(ends.here, number, memory)
            memory[:] = bytes(len(memory))
        assert ends.here.queued >= 2, "both must have had to wait, or this proves nothing"
        await ends.hearing_there.until_frames(2)
        assert ends.hearing_there.frames == [(0, pattern(MORE_THAN_BUFFERS, 1)), (1, pattern(1000, 2))]


@every_wiring
async def test_forget_takes_back_what_has_not_left_and_lets_the_rest_of_a_frame_leave_whole(wiring: Wiring) -> None:
    over, going_on = 7, 8
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES) as ends:
        begun, waiting = (OwnedPayload(ends.here, pattern(MORE_THAN_BUFFERS, seed)) for seed in (1, 2))
        other = OwnedPayload(ends.here, pattern(MIB, 3))
        send_owned(ends.here, 1, begun, collective=over)
        send_owned(ends.here, 2, waiting, collective=over)
        send_owned(ends.here, 3, other, collective=going_on)
        send(ends.here, 4, b"no owner, so nobody can have taken it back")
        assert 0 < ends.here.bytes_sent < MORE_THAN_BUFFERS, "the first frame must be cut in the middle"

        ends.here.forget(over)
        begun.overwrite()
        waiting.overwrite()

        await ends.hearing_there.until_frames(3)
        assert [number for number, _ in ends.hearing_there.frames] == [1, 3, 4]
        assert ends.hearing_there.frames[0][1] == pattern(MORE_THAN_BUFFERS, 1)
        assert ends.hearing_there.frames[1][1] == pattern(MIB, 3)
        assert (begun.told_at, waiting.told_at, len(other.told_at)) == ([], [], 1)


@every_wiring
async def test_after_forget_nothing_more_lands_where_it_was_to_land(wiring: Wiring) -> None:
    """A collective that has ended in the middle of a frame: its memory is the caller's again, at once."""
    over = 0  # the collective of every frame that `header_of` makes
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES, **BULK) as ends:
        place = memoryview(bytearray(MORE_THAN_BUFFERS))
        ends.hearing_there.landing = lambda lane, header: place  # type: ignore[method-assign]
        send(ends.here, 0, pattern(MORE_THAN_BUFFERS, 1))
        await until_received(ends.there, MIB)
        ends.there.forget(over)
        before = bytes(place)
        assert before != pattern(MORE_THAN_BUFFERS, 1), "the frame must be cut in the middle"
        await ends.hearing_there.until_frames(1)
        assert bytes(place) == before


@every_wiring
async def test_forget_from_within_sent_does_not_disturb_the_queue(wiring: Wiring) -> None:
    class Ending(OwnedPayload):
        def sent(self) -> None:
            super().sent()
            self.lane.forget(7)

    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES) as ends:
        ending = Ending(ends.here, pattern(MORE_THAN_BUFFERS, 1))
        dropped, kept = OwnedPayload(ends.here, pattern(MIB, 2)), OwnedPayload(ends.here, pattern(MIB, 3))
        send_owned(ends.here, 1, ending, collective=6)
        send_owned(ends.here, 2, dropped, collective=7)
        send_owned(ends.here, 3, kept, collective=8)
        await ends.hearing_there.until_frames(2)
        assert [number for number, _ in ends.hearing_there.frames] == [1, 3]
        assert (len(ending.told_at), dropped.told_at, len(kept.told_at)) == (1, [], 1)


@every_wiring
async def test_a_lane_works_on_after_everything_queued_was_forgotten(wiring: Wiring) -> None:
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES) as ends:
        send_owned(ends.here, 1, OwnedPayload(ends.here, pattern(MORE_THAN_BUFFERS, 1)), collective=7)
        ends.here.forget(7)
        for number in (2, 3):
            send_owned(ends.here, number, OwnedPayload(ends.here, pattern(MIB, number)), collective=8)
        await ends.hearing_there.until_frames(3)
        assert ends.hearing_there.frames[1:] == [(2, pattern(MIB, 2)), (3, pattern(MIB, 3))]
        assert ends.here.queued == 0


@every_wiring
@either_kind
async def test_a_payload_without_a_place_pauses_the_lane_until_it_is_resumed(
    wiring: Wiring, kind: dict[str, Any]
) -> None:
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES, **kind) as ends:
        hearing = ends.hearing_there
        hearing.open = False
        send(ends.here, 1, b"")
        send(ends.here, 2, pattern(MORE_THAN_BUFFERS))
        send(ends.here, 3, b"after")
        await hearing.until(lambda: hearing.refusals)
        ends.there.resume()
        assert (hearing.refusals, hearing.frames) == (2, [(1, b"")]), "resumed too early: it asks and waits again"
        received = ends.there.bytes_received
        for _ in range(20):
            await asyncio.sleep(0)
        assert ends.there.bytes_received == received, "a paused lane does not read"

        hearing.open = True
        ends.there.resume()
        await hearing.until_frames(3)
        assert hearing.frames == [(1, b""), (2, pattern(MORE_THAN_BUFFERS)), (3, b"after")]


@every_wiring
async def test_resuming_a_lane_that_is_not_paused_does_nothing(wiring: Wiring) -> None:
    async with lanes(wiring=wiring) as ends:
        ends.there.resume()
        send(ends.here, 1, pattern(MIB))
        await ends.hearing_there.until_frames(1)
        ends.there.close()
        ends.there.resume()


async def turn_the_loop() -> None:
    """Long enough for anything that is already due to be reported."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_end_of_the_stream_is_reported_once() -> None:
    async with lane_and_raw_socket() as (lane, listener, raw_socket):
        raw_socket.close()
        assert isinstance(await listener.until_lost(), EOFError)
        send(lane, 1, b"nobody is there")
        lane.resume()
        await turn_the_loop()
        assert len(listener.losses) == 1
        assert lane.closed
        assert lane.socket.fileno() == -1


async def test_a_reset_is_reported_once() -> None:
    async with lane_and_raw_socket() as (_, listener, raw_socket):
        raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw_socket.close()
        assert isinstance(await listener.until_lost(), ConnectionResetError)
        await turn_the_loop()
        assert len(listener.losses) == 1


async def test_a_reset_that_comes_together_with_data_is_reported() -> None:
    async with lane_and_raw_socket() as (lane, listener, raw_socket):
        send(lane, 1, b"what the other end will not have read")
        await asyncio.sleep(0.01)
        raw_socket.send(header_of(7, 10) + b"0123456789")
        raw_socket.close()  # with bytes unread: that is a reset, right behind the frame
        assert isinstance(await listener.until_lost(), ConnectionResetError)
        assert listener.frames == [(7, b"0123456789")]


async def test_a_lane_that_collects_a_large_payload_hears_a_small_frame_after_it_at_once() -> None:
    """The kernel wakes the lane for a large piece of a large payload. A header alone is less than that."""
    payload = pattern(3 * MIB + 5)
    async with lane_and_raw_socket() as (_, listener, raw_socket):
        raw_socket.setblocking(False)
        loop = asyncio.get_running_loop()
        for number in (1, 2):
            await loop.sock_sendall(raw_socket, header_of(number, len(payload)) + payload)
            await listener.until_frames(2 * number - 1)
            await loop.sock_sendall(raw_socket, header_of(9, 3) + b"abc")
            await listener.until_frames(2 * number)
        assert listener.frames == [(1, payload), (9, b"abc"), (2, payload), (9, b"abc")]


async def test_the_end_of_a_stream_in_the_middle_of_a_large_payload_is_heard() -> None:
    async with lane_and_raw_socket() as (_, listener, raw_socket):
        raw_socket.send(header_of(1, 3 * MIB) + b"the beginning")
        await asyncio.sleep(0.01)
        raw_socket.close()
        assert isinstance(await listener.until_lost(), EOFError)


async def test_what_fails_while_sending_is_reported_once_and_not_from_within_send() -> None:
    async with lane_and_raw_socket() as (lane, listener, _):
        lane.socket.shutdown(socket.SHUT_WR)
        for number in range(3):
            send(lane, number, b"")
        assert listener.losses == []
        assert isinstance(await listener.until_lost(), BrokenPipeError)
        await turn_the_loop()
        assert len(listener.losses) == 1


@every_wiring
async def test_what_fails_while_the_queue_is_sent_is_reported_once(wiring: Wiring) -> None:
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES) as ends:
        ends.hearing_there.open = False
        owned = OwnedPayload(ends.here, pattern(MORE_THAN_BUFFERS))
        send_owned(ends.here, 1, owned)
        await ends.hearing_there.until(lambda: ends.hearing_there.refusals)
        ends.there.close()  # with bytes unread, which resets the connection
        assert isinstance(await ends.hearing_here.until_lost(), OSError | EOFError)
        await turn_the_loop()
        assert len(ends.hearing_here.losses) == 1
        assert owned.told_at == []
        assert ends.here.queued == 0


async def test_the_last_words_of_a_peer_are_heard_even_if_sending_fails_first() -> None:
    async with lane_and_raw_socket() as (lane, listener, raw_socket):
        raw_socket.send(header_of(1, 5) + b"words")
        raw_socket.close()
        for number in range(3):  # the first is answered with a reset, the second fails
            send(lane, number, b"nobody hears this")
        await listener.until_lost()
        assert listener.frames == [(1, b"words")]


def patched(header: bytes, *, at: int, value: int) -> bytes:
    return header[:at] + bytes([value]) + header[at + 1 :]


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n",
    "zeros": bytes(HEADER_BYTES),
    "another version": patched(header_of(1, 0), at=2, value=255),
    "unknown kind": patched(header_of(1, 0), at=3, value=200),
    "too long": header_of(1, LIMIT_BYTES + 1),
    "too long for news": patched(header_of(1, NEWS_LIMIT_BYTES + 1), at=3, value=FrameKind.ABORT),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_reported_once_and_nothing_of_it_is_used(garbage: bytes) -> None:
    async with lane_and_raw_socket() as (lane, listener, raw_socket):
        raw_socket.send(header_of(1, 0) + garbage + garbage)
        assert isinstance(await listener.until_lost(), RemoteProtocolError)
        await turn_the_loop()
        assert len(listener.losses) == 1
        assert listener.frames == [(1, b"")]
        assert lane.closed


async def test_a_frame_that_cannot_be_handled_ends_the_lane(caplog: pytest.LogCaptureFixture) -> None:
    async with lane_and_raw_socket() as (lane, listener, raw_socket):

        def stumble(*_: object) -> None:
            raise ZeroDivisionError("a bug of ours")

        listener.arrived = stumble  # type: ignore[method-assign]
        raw_socket.send(header_of(1, 0))
        assert isinstance(await listener.until_lost(), ZeroDivisionError)
        assert lane.closed
        assert caplog.record_tuples == [
            ("ringwide.transport", logging.ERROR, "lane=1 peer=1: a frame could not be handled")
        ]


@every_wiring
async def test_the_end_of_a_stream_is_seen_after_what_was_sent(wiring: Wiring) -> None:
    async with lanes(wiring=wiring) as ends:
        send(ends.here, 1, b"last")
        ends.here.close()
        assert isinstance(await ends.hearing_there.until_lost(), EOFError)
        assert ends.hearing_there.frames == [(1, b"last")]


@every_wiring
async def test_a_closed_lane_takes_nothing_and_reports_nothing(wiring: Wiring) -> None:
    async with lanes(wiring=wiring) as ends:
        ends.here.close()
        ends.here.close()
        owned = OwnedPayload(ends.here, b"late")
        send_owned(ends.here, 1, owned)
        await ends.hearing_there.until_lost()
        assert owned.told_at == []
        assert ends.hearing_here.losses == []
        carrier = wiring.value if wiring in (Wiring.MEMORY, Wiring.UNIX) else "tcp"
        assert repr(ends.here) == f"<Lane 1 to rank 1 by {carrier}: closed>"


async def test_a_lane_of_many_frames_lets_others_have_their_turn() -> None:
    """One wake reads a bounded amount, so a peer that never stops cannot keep the loop to itself."""
    async with lane_and_raw_socket() as (_, listener, raw_socket):
        raw_socket.sendall(header_of(1, 0) * 500)
        await listener.until_frames(1)
        assert len(listener.frames) < 500
        await listener.until_frames(500)
