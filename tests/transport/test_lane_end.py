"""The end of a lane: with END in both directions and nothing lost, or with an error. Over every wire."""

import asyncio
import socket
from typing import Any

import pytest

from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import HEADER_BYTES, FrameKind, framed
from ringwide.transport.link import Link
from ringwide.transport.wire import CutOff
from transport.wire import (
    SMALL_BUFFER_BYTES,
    Ends,
    Listener,
    Wiring,
    header_of,
    lane_and_raw_socket,
    lanes,
    pattern,
    send,
)

EXPRESS: dict[str, Any] = {"index": 0, "staging_bytes": 64 * 1024}
BULK: dict[str, Any] = {"index": 1, "staging_bytes": 0}
MORE_THAN_BUFFERS = 8 * 1024 * 1024
END = framed(FrameKind.END, b"")

every_wiring = pytest.mark.parametrize("wiring", Wiring, ids=lambda wiring: wiring.value)
either_kind = pytest.mark.parametrize("kind", [EXPRESS, BULK], ids=["express", "bulk"])


async def until_ended(hearing: Listener) -> None:
    await hearing.until(lambda: hearing.has_ended or hearing.losses)
    assert not hearing.losses


async def turn_the_loop() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@every_wiring
@either_kind
async def test_what_is_queued_comes_before_the_end_and_nothing_after_it(wiring: Wiring, kind: dict[str, Any]) -> None:
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES, **kind) as ends:
        payloads = [pattern(MORE_THAN_BUFFERS, 1), pattern(100_000, 2), b"last"]
        for number, payload in enumerate(payloads):
            send(ends.here, number, payload)
        ends.here.finish()
        send(ends.here, 9, b"too late")
        assert ends.here.queued, "or this proves nothing"
        await until_ended(ends.hearing_there)
        assert ends.hearing_there.frames == list(enumerate(payloads))
        assert not ends.here.closed, "it serves on until the other end has answered"
        assert not ends.there.closed


@every_wiring
@either_kind
async def test_a_lane_closes_when_both_ends_have_finished(wiring: Wiring, kind: dict[str, Any]) -> None:
    async with lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES, **kind) as ends:
        send(ends.there, 1, pattern(MORE_THAN_BUFFERS))
        ends.here.finish()
        await until_ended(ends.hearing_there)
        ends.there.finish()
        await eventually(lambda: ends.here.closed)
        await eventually(lambda: ends.there.closed)
        assert ends.hearing_here.frames == [(1, pattern(MORE_THAN_BUFFERS))]
        await turn_the_loop()
        assert ends.hearing_here.losses + ends.hearing_there.losses == []


@every_wiring
async def test_two_that_finish_at_once_do_not_wait_for_an_answer(wiring: Wiring) -> None:
    async with lanes(wiring=wiring, **EXPRESS) as ends:
        ends.here.finish()
        ends.there.finish()
        for hearing, lane in ((ends.hearing_here, ends.here), (ends.hearing_there, ends.there)):
            await until_ended(hearing)
            assert lane.closed


@every_wiring
async def test_an_end_without_END_is_a_loss(wiring: Wiring) -> None:
    async with lanes(wiring=wiring) as ends:
        send(ends.here, 1, b"last")
        ends.here.close()
        assert isinstance(await ends.hearing_there.until_lost(), EOFError)
        assert not ends.hearing_there.has_ended


@every_wiring
async def test_a_connection_that_breaks_after_END_has_lost_nothing(wiring: Wiring) -> None:
    async with lanes(wiring=wiring) as ends:
        send(ends.here, 1, b"last")
        ends.here.finish()
        await until_ended(ends.hearing_there)
        ends.here.reset()
        await eventually(lambda: ends.there.closed)
        assert ends.hearing_there.losses == []


HALVES = {
    "half a header": header_of(1, 0)[: HEADER_BYTES // 2],
    "no payload": header_of(1, 10),
    "half a payload": header_of(1, 10) + b"12345",
    "half a large payload": header_of(1, 3_000_000) + bytes(1_000_000),
    "half an END": END[:40],
}


@either_kind
@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
async def test_an_end_inside_of_a_frame_is_an_error(half: bytes, kind: dict[str, Any]) -> None:
    async with lanes(**kind) as ends:
        ends.here.socket.setblocking(True)
        await asyncio.to_thread(ends.here.socket.sendall, header_of(0, 2) + b"ok" + half)
        ends.here.close()
        lost = await ends.hearing_there.until_lost()
        assert isinstance(lost, CutOff)
        assert str(lost) == "it closed the connection in the middle of a frame"
        assert ends.hearing_there.frames == [(0, b"ok")]


async def test_an_end_inside_of_a_reference_to_a_slot_is_an_error() -> None:
    async with lanes(wiring=Wiring.MEMORY, **BULK) as ends:
        ends.here.socket.send(header_of(1, 100_000) + bytes(2))
        ends.here.close()
        assert isinstance(await ends.hearing_there.until_lost(), CutOff)


@pytest.mark.parametrize("wiring", [Wiring.TLS, Wiring.ENCRYPTED], ids=lambda wiring: wiring.value)
@pytest.mark.parametrize("kept", [1, 4, 5, 30, -1])
async def test_an_end_inside_of_a_record_is_an_error(wiring: Wiring, kept: int) -> None:
    async with lanes(wiring=wiring, **EXPRESS) as ends:
        send(ends.here, 0, b"ok")
        await ends.hearing_there.until_frames(1)
        record = record_of(ends)
        ends.here.socket.send(record[:kept])
        ends.here.socket.shutdown(socket.SHUT_WR)
        assert isinstance(await ends.hearing_there.until_lost(), CutOff)
        assert ends.hearing_there.frames == [(0, b"ok")]


def record_of(ends: Ends) -> bytes:
    """A frame as it would travel next."""
    wire: Any = ends.wires[0]
    return bytes(wire._encrypt(header_of(1, 5) + b"words"))


@pytest.mark.parametrize("after", [END, header_of(1, 0), header_of(1, 3) + b"abc"], ids=["END", "empty", "payload"])
async def test_a_frame_after_END_breaks_the_protocol(after: bytes) -> None:
    async with lane_and_raw_socket() as (_, listener, raw_socket):
        raw_socket.send(END + after)
        assert isinstance(await listener.until_lost(), RemoteProtocolError)
        assert listener.frames == []


# A link


class Two:
    """Two links to each other, of an express lane and a bulk lane."""

    def __init__(self, express: Ends, bulk: Ends) -> None:
        self.read_here: list[int] = []
        self.read_there: list[int] = []
        self.here, self.there = Link(1, self.read_here.append), Link(0, self.read_there.append)
        for ends in (express, bulk):
            self.here.add(ends.here)
            self.there.add(ends.there)


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - both ends are at work
            await asyncio.sleep(0)


@every_wiring
async def test_a_link_answers_when_every_lane_of_it_has_been_read(wiring: Wiring) -> None:
    async with (
        lanes(wiring=wiring, **EXPRESS) as express,
        lanes(wiring=wiring, buffer_bytes=SMALL_BUFFER_BYTES, **BULK) as bulk,
    ):
        two = Two(express, bulk)
        bulk.hearing_there.open = False
        send(bulk.here, 1, pattern(MORE_THAN_BUFFERS))
        two.here.finish(lambda: None)
        await until_ended(express.hearing_there)
        await bulk.hearing_there.until(lambda: bulk.hearing_there.refusals)
        await turn_the_loop()
        assert not express.hearing_here.has_ended, "no answer before all was read"
        assert not two.here.over

        bulk.hearing_there.open = True
        bulk.there.resume()
        await eventually(lambda: two.here.over and two.there.over)
        assert bulk.hearing_there.frames == [(1, pattern(MORE_THAN_BUFFERS))]
        assert (two.read_here, two.read_there) == ([1], [0])
        assert all(lane.closed for lane in (express.here, express.there, bulk.here, bulk.there))


async def test_a_link_of_which_a_lane_breaks_is_over_and_says_so() -> None:
    async with lanes(**EXPRESS) as express, lanes(**BULK) as bulk:
        two, told = Two(express, bulk), asyncio.Event()
        two.here.finish(told.set)
        bulk.there.close()
        async with asyncio.timeout(60):
            await told.wait()
        assert two.here.over
        assert not express.here.closed


async def test_what_the_kernel_of_the_peer_has_is_read_there_after_an_abandoned_link() -> None:
    async with lanes(**EXPRESS) as express, lanes(**BULK) as bulk:
        two = Two(express, bulk)
        send(express.here, 1, b"words")
        send(bulk.here, 2, b"numbers")
        two.here.finish(lambda: None)
        await eventually(lambda: all(lane.delivered for lane in two.here.lanes.values()))
        two.here.abandon()
        await eventually(lambda: two.read_there)
        assert (express.hearing_there.frames, bulk.hearing_there.frames) == ([(1, b"words")], [(2, b"numbers")])
        assert express.hearing_there.losses + bulk.hearing_there.losses == []


async def test_an_abandoned_link_is_reset_where_something_has_not_arrived() -> None:
    async with lanes(buffer_bytes=SMALL_BUFFER_BYTES, **BULK) as bulk:
        link = Link(1, lambda peer: None)
        link.add(bulk.here)
        bulk.hearing_there.open = False
        send(bulk.here, 1, pattern(MORE_THAN_BUFFERS))
        link.finish(lambda: None)
        await bulk.hearing_there.until(lambda: bulk.hearing_there.refusals)
        link.abandon()
        bulk.hearing_there.open = True
        bulk.there.resume()
        assert isinstance(await bulk.hearing_there.until_lost(), ConnectionResetError)
        assert not bulk.hearing_there.has_ended
