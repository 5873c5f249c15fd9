"""Heartbeats between two ranks of three, over real sockets; the third never answers.

The clock stands still until a test moves it on, so that nobody is silent because the machine is slow.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from ringwide.errors import CorruptFrame, RemoteProtocolError
from ringwide.health.heartbeats import HeartbeatLane, Heartbeats
from ringwide.protocol.heartbeat import HEARTBEAT_BYTES, Heartbeat, HeartbeatKind, read_heartbeat
from ringwide.transport.link import Link
from ringwide.transport.wire import PlainWire

PATIENCE_SECONDS = 60
BEATS = 8  # until somebody is silent
BEAT_SECONDS = 1 / 64
SUSPECT_SECONDS = BEATS * BEAT_SECONDS


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Rank:
    """One rank's heartbeats, and what it has reported."""

    def __init__(self, rank: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.silent: list[int] = []
        self.lost: list[tuple[int, Exception]] = []
        self.called = 1
        self.links = {peer: Link(peer, lambda _: None) for peer in range(3) if peer != rank}
        self.heartbeats = Heartbeats(
            rank=rank,
            links=self.links,
            suspect_after_seconds=SUSPECT_SECONDS,
            called=lambda: self.called,
            on_silent=self._on_silent,
            on_lost=self._on_lost,
            monotonic=monotonic,
        )

    def _on_silent(self, peers: object, seconds: float) -> None:
        assert seconds == SUSPECT_SECONDS
        self.silent += peers  # type: ignore[operator]

    def _on_lost(self, peer: int, error: Exception) -> None:
        self.lost.append((peer, error))

    def heard_at(self, peer: int) -> float:
        return self.heartbeats._lanes[peer].heartbeat_at

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - what a thread has heard is no event
                await asyncio.sleep(0.001)


class Trio:
    """Rank 0, which is tested; rank 1, which answers; and the bare end of the connection to rank 2."""

    def __init__(
        self, sockets: dict[str, socket.socket], monotonic: Callable[[], float] | None, *, answering: bool
    ) -> None:
        self.clock = Clock()
        self.here, self.answering, self.third = Rank(0, monotonic or self.clock), Rank(1), sockets["third"]
        self.answers = answering
        self.here.heartbeats.add(1, PlainWire(sockets["to_answering"]))
        self.here.heartbeats.add(2, PlainWire(sockets["to_third"]))
        self.answering.heartbeats.add(0, PlainWire(sockets["answering"]))

    def pings(self) -> int:
        """How many rank 2 has been asked, the last of all in every beat."""
        try:
            came = self.third.recv(1 << 16, socket.MSG_PEEK)
        except BlockingIOError:
            return 0
        whole = range(0, len(came) // HEARTBEAT_BYTES * HEARTBEAT_BYTES, HEARTBEAT_BYTES)
        received = [read_heartbeat(came[place : place + HEARTBEAT_BYTES], size=3) for place in whole]
        return sum(heartbeat.kind == HeartbeatKind.PING for heartbeat in received)

    async def watch(self, collective: int) -> None:
        self.here.heartbeats.watch(collective)
        await self.here.until(lambda: self.has_asked(1))

    async def beats(self, count: int = 1) -> None:
        """So much time passes, and whoever answers has been heard each time."""
        for _ in range(count):
            asked = self.pings()
            self.clock.now += BEAT_SECONDS
            await self.here.until(lambda asked=asked: self.has_asked(asked + 1))

    def has_asked(self, times: int) -> bool:
        return self.pings() == times and (not self.answers or self.here.heard_at(1) == self.clock.now)

    async def third_says(self, called: int) -> None:
        self.third.send(Heartbeat(HeartbeatKind.PING, 0, 0, called, 0).pack())
        await self.here.until(lambda: self.here.heard_at(2) == self.clock.now)


@asynccontextmanager
async def trio(monotonic: Callable[[], float] | None = None, *, answering: bool = True) -> AsyncIterator[Trio]:
    sockets = dict(
        zip(
            ("to_answering", "answering", "to_third", "third"),
            [*socket.socketpair(), *socket.socketpair()],
            strict=True,
        )
    )
    for sock in sockets.values():
        sock.setblocking(False)
    three = Trio(sockets, monotonic, answering=answering)
    try:
        three.here.heartbeats.start()
        if answering:
            three.answering.heartbeats.start()
        yield three
    finally:
        three.here.heartbeats.close()
        three.answering.heartbeats.close()
        three.third.close()


async def test_only_the_one_that_does_not_answer_is_silent() -> None:
    async with trio() as three:
        await three.watch(1)
        await three.beats(BEATS - 1)
        assert three.here.silent == []
        await three.beats()
        await three.here.until(lambda: three.here.silent)
        assert three.here.silent == [2]
        assert three.here.heartbeats.stragglers.round_trip(1) == 0


async def test_silence_ends_by_the_clock_of_the_machine() -> None:
    async with trio(time.monotonic) as three:
        three.here.heartbeats.watch(1)
        await three.here.until(lambda: 2 in three.here.silent)


async def test_one_that_computes_still_answers() -> None:
    """Its event loop, which is ours as well, stands still for longer than anybody may be silent."""
    async with trio() as three:
        await three.watch(1)
        for asked in range(1, 3 * BEATS):
            three.clock.now += BEAT_SECONDS
            until = time.monotonic() + PATIENCE_SECONDS
            while not three.has_asked(asked + 1):
                assert time.monotonic() < until
        await three.here.until(lambda: len(three.here.silent) >= 2)
        assert set(three.here.silent) == {2}


async def test_nothing_travels_while_nobody_waits() -> None:
    async with trio() as three:
        three.clock.now += 2 * SUSPECT_SECONDS
        await asyncio.sleep(2 * SUSPECT_SECONDS)
        assert three.pings() == 0
        await three.watch(1)
        await three.beats()
        three.here.heartbeats.rest()
        three.clock.now += 2 * SUSPECT_SECONDS
        await asyncio.sleep(2 * SUSPECT_SECONDS)
        assert three.pings() == 2
        assert three.here.silent == []


async def test_whatever_comes_from_a_rank_counts() -> None:
    async with trio() as three:
        await three.watch(1)
        for _ in range(5):
            await three.beats(BEATS - 1)
            await three.third_says(1)
        assert three.here.silent == []


async def test_those_who_are_asked_tell_what_they_have_called_and_those_who_have_not_are_late() -> None:
    async with trio() as three:
        three.answering.called = 7
        await three.watch(8)
        await three.beats(BEATS + 2)
        late = three.here.heartbeats.stragglers.late.total
        assert late[1] >= SUSPECT_SECONDS
        assert three.here.heartbeats.called(1) == 7
        three.answering.called = 8
        await three.beats()  # its answer comes at the end of this one
        assert three.here.heartbeats.called(1) == 8
        before = late[1]
        await three.beats(BEATS)
        assert late[1] == before


class StuckLane:
    """One whose bytes do not leave."""

    bytes_received, queued = 0, 1


async def test_bytes_that_are_stuck_say_nothing_before_all_have_called() -> None:
    async with trio() as three:
        three.here.links[1].lanes[0] = StuckLane()  # type: ignore[assignment]
        three.answering.called = 7
        stragglers = three.here.heartbeats.stragglers
        await three.watch(8)
        await three.beats()
        await three.third_says(8)
        await three.beats(BEATS)
        assert stragglers.late.total[1] >= SUSPECT_SECONDS
        assert stragglers.stuck.total == {}
        three.answering.called = 8
        await three.beats(2)
        assert stragglers.stuck.total == {1: BEAT_SECONDS}


async def test_when_we_were_stopped_others_are_heard_before_they_are_accused() -> None:
    async with trio() as three:
        await three.watch(1)
        await three.beats(BEATS // 2)
        three.clock.now += 1000 * SUSPECT_SECONDS
        await three.beats(BEATS // 2 - 1)
        assert three.here.silent == []
        await three.beats()
        await three.here.until(lambda: three.here.silent)
        assert three.here.silent == [2]


async def test_one_that_hears_of_nobody_reports_all_at_once() -> None:
    async with trio(answering=False) as three:
        await three.watch(1)
        await three.beats()
        await three.third_says(1)  # the last that is heard of anybody
        await three.beats(BEATS - 1)
        await three.here.until(lambda: three.here.silent)
        assert three.here.silent == [1, 2]


async def test_the_end_of_a_heartbeat_lane_is_told() -> None:
    async with trio() as three:
        three.third.close()
        await three.here.until(lambda: three.here.lost)
        ((peer, error),) = three.here.lost
        assert peer == 2
        assert isinstance(error, EOFError)


@pytest.mark.parametrize("damage", [Heartbeat(9, 0, 0, 1, 0), Heartbeat(HeartbeatKind.PONG, 3, 0, 1, 0)])
async def test_strange_signs_end_the_lane(damage: Heartbeat) -> None:
    async with trio() as three:
        three.third.send(damage.pack())
        await three.here.until(lambda: three.here.lost)
        ((peer, error),) = three.here.lost
        assert peer == 2
        assert isinstance(error, RemoteProtocolError)


def test_a_damaged_sign_is_noticed() -> None:
    for bit in range(0, 8 * HEARTBEAT_BYTES, 5):
        damaged = bytearray(Heartbeat(HeartbeatKind.PING, 0, 0, 1, 0).pack())
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFrame):
            read_heartbeat(damaged, size=3)


def test_a_flood_of_signs_is_read_a_little_at_a_time() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        lane = HeartbeatLane(2, PlainWire(here))
        there.sendall(1000 * Heartbeat(HeartbeatKind.PING, 0, 0, 5, 0).pack())
        assert 0 < len(lane.receive(3)) <= 64


async def test_a_sign_in_pieces() -> None:
    async with trio() as three:
        for byte in Heartbeat(HeartbeatKind.PING, 0, 0, 5, 0).pack():
            three.third.send(bytes([byte]))
        await three.here.until(lambda: three.here.heartbeats.called(2) == 5)


async def test_closing_ends_the_thread() -> None:
    async with trio() as three:
        thread = three.here.heartbeats._thread
        assert thread.is_alive()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
