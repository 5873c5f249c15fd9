"""Signs of life between two ranks of three, over real sockets; the third never answers."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from ringwide.errors import CorruptFrame, RemoteProtocolError
from ringwide.membership.liveness import Liveness, Pulse
from ringwide.protocol.vital import SIGN_BYTES, Sign, SignKind, read_sign
from ringwide.transport.link import Link
from ringwide.transport.wire import PlainWire

PATIENCE_SECONDS = 20
SUSPECT_SECONDS = 0.4


class Rank:
    """One rank's liveness, and what it has reported."""

    def __init__(self, rank: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.silent: list[int] = []
        self.lost: list[tuple[int, Exception]] = []
        self.called = 1
        self._changed = asyncio.Event()
        self.links = {peer: Link(peer) for peer in range(3) if peer != rank}
        self.liveness = Liveness(
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
        self._changed.set()

    def _on_lost(self, peer: int, error: Exception) -> None:
        self.lost.append((peer, error))
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - what a thread has heard is no event
                await asyncio.sleep(0.005)


class Trio:
    """Rank 0, which is tested; rank 1, which answers; and the bare end of the connection to rank 2."""

    def __init__(self, sockets: dict[str, socket.socket], monotonic: Callable[[], float]) -> None:
        self.here, self.answering, self.third = Rank(0, monotonic), Rank(1), sockets["third"]
        self.here.liveness.add(1, PlainWire(sockets["to_answering"]))
        self.here.liveness.add(2, PlainWire(sockets["to_third"]))
        self.answering.liveness.add(0, PlainWire(sockets["answering"]))

    def questions(self) -> int:
        try:
            return len(self.third.recv(1 << 16, socket.MSG_PEEK)) // SIGN_BYTES
        except BlockingIOError:
            return 0


@asynccontextmanager
async def trio(monotonic: Callable[[], float] = time.monotonic, *, answering: bool = True) -> AsyncIterator[Trio]:
    sockets = dict(
        zip(
            ("to_answering", "answering", "to_third", "third"),
            [*socket.socketpair(), *socket.socketpair()],
            strict=True,
        )
    )
    for sock in sockets.values():
        sock.setblocking(False)
    three = Trio(sockets, monotonic)
    try:
        three.here.liveness.start()
        if answering:
            three.answering.liveness.start()
        yield three
    finally:
        three.here.liveness.close()
        three.answering.liveness.close()
        three.third.close()


async def test_only_the_one_that_does_not_answer_is_silent() -> None:
    async with trio() as three:
        three.here.liveness.watch(1)
        await three.here.until(lambda: three.here.silent)
        assert three.here.silent == [2]
        assert three.here.liveness.slowness.round_trip(1) is not None


async def test_one_that_computes_still_answers() -> None:
    """Its event loop, which is ours as well, stands still for longer than anybody may be silent."""
    async with trio() as three:
        three.here.liveness.watch(1)
        until = time.monotonic() + 3 * SUSPECT_SECONDS
        while time.monotonic() < until:
            pass
        await three.here.until(lambda: three.here.silent)
        assert set(three.here.silent) == {2}


async def test_nothing_travels_while_nobody_waits() -> None:
    async with trio() as three:
        await asyncio.sleep(2 * SUSPECT_SECONDS)
        assert three.questions() == 0
        three.here.liveness.watch(1)
        await three.here.until(lambda: three.questions() >= 2)
        three.here.liveness.rest()
        await asyncio.sleep(SUSPECT_SECONDS)
        asked = three.questions()
        await asyncio.sleep(2 * SUSPECT_SECONDS)
        assert three.questions() == asked
        assert three.here.silent == []


async def test_whatever_comes_from_a_rank_counts() -> None:
    async with trio() as three:
        three.here.liveness.watch(1)
        for _ in range(20):
            three.third.send(Sign(SignKind.QUESTION, 0, 0, 1, 0).pack())
            await asyncio.sleep(SUSPECT_SECONDS / 5)
        assert three.here.silent == []


async def test_those_who_are_asked_tell_what_they_have_called_and_those_who_have_not_are_late() -> None:
    async with trio() as three:
        three.answering.called = 7
        three.here.liveness.watch(8)
        await three.here.until(lambda: three.here.liveness.slowness.late.total[1] > SUSPECT_SECONDS)
        assert three.here.liveness.called(1) == 7
        three.answering.called = 8
        await three.here.until(lambda: three.here.liveness.called(1) == 8)
        late = three.here.liveness.slowness.late.total[1]
        await asyncio.sleep(2 * SUSPECT_SECONDS)
        assert (
            three.here.liveness.slowness.late.total[1] <= late + SUSPECT_SECONDS / 8
        )  # one beat may have been under way


class StuckLane:
    """One whose bytes do not leave."""

    bytes_received, queued = 0, 1


async def test_bytes_that_are_stuck_say_nothing_before_all_have_called() -> None:
    async with trio() as three:
        three.here.links[1].lanes[0] = StuckLane()  # type: ignore[assignment]
        three.answering.called = 7
        slowness = three.here.liveness.slowness
        three.here.liveness.watch(8)
        three.third.send(Sign(SignKind.QUESTION, 0, 0, 8, 0).pack())
        await three.here.until(lambda: slowness.late.total[1] > SUSPECT_SECONDS)
        assert slowness.stuck.total == {}
        three.answering.called = 8
        await three.here.until(lambda: slowness.stuck.total[1] > 0)


async def test_when_we_were_stopped_others_are_heard_before_they_are_accused() -> None:
    skipped = 0.0
    async with trio(lambda: time.monotonic() + skipped) as three:
        three.here.liveness.watch(1)
        await three.here.until(lambda: three.here.liveness.slowness.round_trip(1) is not None)
        skipped += 1000 * SUSPECT_SECONDS
        await three.here.until(lambda: three.here.silent)
        assert three.here.silent == [2]


async def test_one_that_hears_of_nobody_reports_all_at_once() -> None:
    async with trio(answering=False) as three:
        three.here.liveness.watch(1)
        await asyncio.sleep(SUSPECT_SECONDS / 8)
        three.third.send(Sign(SignKind.QUESTION, 0, 0, 1, 0).pack())  # the last that is heard of anybody
        await three.here.until(lambda: three.here.silent)
        assert three.here.silent == [1, 2]


async def test_the_end_of_a_vital_lane_is_told() -> None:
    async with trio() as three:
        three.third.close()
        await three.here.until(lambda: three.here.lost)
        ((peer, error),) = three.here.lost
        assert peer == 2
        assert isinstance(error, EOFError)


@pytest.mark.parametrize("damage", [Sign(9, 0, 0, 1, 0), Sign(SignKind.ANSWER, 3, 0, 1, 0)])
async def test_strange_signs_end_the_lane(damage: Sign) -> None:
    async with trio() as three:
        three.third.send(damage.pack())
        await three.here.until(lambda: three.here.lost)
        ((peer, error),) = three.here.lost
        assert peer == 2
        assert isinstance(error, RemoteProtocolError)


def test_a_damaged_sign_is_noticed() -> None:
    for bit in range(0, 8 * SIGN_BYTES, 5):
        damaged = bytearray(Sign(SignKind.QUESTION, 0, 0, 1, 0).pack())
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFrame):
            read_sign(damaged, size=3)


def test_a_flood_of_signs_is_read_a_little_at_a_time() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        pulse = Pulse(2, PlainWire(here))
        there.sendall(1000 * Sign(SignKind.QUESTION, 0, 0, 5, 0).pack())
        assert 0 < len(pulse.signs(3)) <= 64


async def test_a_sign_in_pieces() -> None:
    async with trio() as three:
        for byte in Sign(SignKind.QUESTION, 0, 0, 5, 0).pack():
            three.third.send(bytes([byte]))
        await three.here.until(lambda: three.here.liveness.called(2) == 5)


async def test_closing_ends_the_thread() -> None:
    async with trio() as three:
        thread = three.here.liveness._thread
        assert thread.is_alive()
    assert not thread.is_alive()
