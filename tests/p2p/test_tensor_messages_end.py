"""Messages that do not arrive: a peer leaves, is lost or silent, breaks the rules, or lets us wait too long."""

import asyncio
import itertools
import logging
from typing import Any

import numpy as np
import pytest
import torch

import ringwide
from local_ring import Everyone, error_of, free_peers, on_every_rank
from ringwide import Ring
from ringwide.p2p.endpoint import Endpoint
from ringwide.p2p.transfer import OutgoingTransfer
from ringwide.protocol.frame import FrameKind, news
from ringwide.protocol.p2p import P2P_LANE

LARGE = 4_000_000


def cut_connections(ring: Ring) -> None:
    for link in ring._engine.links.values():
        for lane in link.lanes.values():
            lane.close()


async def test_a_peer_that_is_lost_is_named_to_all_that_wait() -> None:
    """Even to those that wait for somebody else: the ring is over."""
    waiting, know = Everyone(3), Everyone(3)

    async def act(ring: Ring) -> None:
        if ring.rank == 1:
            await waiting.wait()
            cut_connections(ring)
            await know.wait()
            return
        places, other = np.full((3, 5), -1.0), 2 - ring.rank
        tasks = [
            asyncio.create_task(ring.receive(places[0], 1)),
            asyncio.create_task(ring.receive(places[1])),
            asyncio.create_task(ring.send(np.ones(5), to=1, tag=1)),
            asyncio.create_task(ring.receive(places[2], other, tag=2)),
        ]
        await asyncio.sleep(0)
        await waiting.wait()
        errors = [await error_of(task) for task in tasks]
        for error in (*errors, await error_of(ring.send(np.ones(1), to=other))):
            assert type(error) is ringwide.PeerLost
            assert error.rank == 1
        assert (places == -1).all()
        await know.wait()

    await on_every_rank(3, act, messages=True)


async def test_who_has_left_is_waited_for_by_nobody_and_the_others_write_on() -> None:
    """Rank 2 leaves as soon as its message has left: rank 0 has it, though it reads it late."""

    async def act(ring: Ring) -> None:
        if ring.rank == 2:
            await ring.send(torch.full((LARGE,), 2.0), to=0)
            return
        if ring.rank == 0:
            place = torch.zeros(LARGE)
            assert await ring.receive(place) == 2
            assert bool((place == 2).all())
        for call in (ring.receive(np.zeros(1), 2), ring.send(np.zeros(1), 2)):
            error = await error_of(call)
            assert isinstance(error, ringwide.PeerLeft)
            assert error.rank == 2
        received, ours = np.zeros(9), np.full(9, float(ring.rank))
        sent = asyncio.create_task(ring.send(ours, to=1 - ring.rank, tag=3))
        assert await ring.receive(received, tag=3) == 1 - ring.rank
        await sent
        assert (received == 1 - ring.rank).all()

    await on_every_rank(3, act, messages=True, stay=False)


async def test_a_receive_from_anybody_fails_when_everybody_has_left() -> None:
    async def act(ring: Ring) -> None:
        if ring.rank == 0:
            error = await error_of(ring.receive(np.zeros(1)))
            assert isinstance(error, ringwide.PeerLeft)

    await on_every_rank(3, act, messages=True, stay=False)


async def test_what_is_open_when_the_ring_is_left_says_so() -> None:
    tasks: list[asyncio.Task[Any]] = []
    rings: list[Ring] = []

    async def act(ring: Ring) -> None:
        rings.append(ring)
        tasks.append(asyncio.create_task(ring.receive(np.zeros(1), 1 - ring.rank)))
        await ring.barrier()

    await on_every_rank(2, act, messages=True)
    for task in tasks:
        assert isinstance(await error_of(task), ringwide.RingClosed | ringwide.PeerLeft)
    assert isinstance(await error_of(rings[0].send(np.zeros(1), 1)), ringwide.RingClosed)
    assert isinstance(await error_of(rings[0].exchange([None] * 2, [None] * 2)), ringwide.RingClosed)


async def test_a_message_that_nobody_sends_times_out_and_the_ring_works_on(caplog: pytest.LogCaptureFixture) -> None:
    gave_up = Everyone(2)

    async def act(ring: Ring) -> None:
        if ring.rank == 0:
            place = np.full(3, -1.0)
            with caplog.at_level(logging.WARNING, "ringwide.p2p"):
                error = await error_of(ring.receive(place, 1, tag=6))
            assert isinstance(error, ringwide.CollectiveTimeout)
            assert error.waiting_for == (1,)
            assert "the message from rank 1 with tag 6 (float64[3])" in str(error)
            assert (place == -1).all()
        await gave_up.wait()
        await ring.barrier()
        ours = np.full(3, float(ring.rank))
        await (ring.send(ours, 0, tag=6) if ring.rank else ring.receive(ours, 1, tag=6))
        assert (ours == 1).all()

    await on_every_rank(2, act, messages=True, collective_timeout_seconds=2.0, warn_after_seconds=0.5)
    assert "the message from rank 1 with tag 6 (float64[3]): waiting for rank 1" in caplog.text


async def test_while_a_message_is_awaited_signs_of_life_are_asked_for() -> None:
    """And silence of the one that is waited for ends the wait."""

    class HeartbeatSource:
        def __init__(self) -> None:
            self.watched, self.rested = asyncio.Event(), asyncio.Event()

        def watch(self, collective: int) -> None:
            assert collective == 0
            self.watched.set()

        def rest(self) -> None:
            self.rested.set()

        def called(self, peer: int) -> int:
            return 0

    over = Everyone(2)

    async def act(ring: Ring) -> None:
        heartbeats = HeartbeatSource()
        if ring.rank == 0:
            ring._engine.dispatcher.deadlines.start(heartbeats)
            first, second = (asyncio.create_task(ring.receive(np.zeros(1), 1, tag)) for tag in (0, 1))
            await heartbeats.watched.wait()
            await asyncio.wait([first])
            assert not heartbeats.rested.is_set()
            ring._engine.dispatcher.peer_loss.silent([1], 10.0)
            error = await error_of(second)
            assert isinstance(error, ringwide.PeerLost)
            assert "nothing was heard of it for 10 s" in str(error)
            await heartbeats.rested.wait()
        else:
            await ring.send(np.zeros(1), to=0)
            error = await error_of(ring.receive(np.zeros(1)))
            assert isinstance(error, ringwide.PeerLost)
            assert "given up on this rank" in str(error)
        await over.wait()

    await on_every_rank(2, act, messages=True)


@pytest.mark.parametrize(
    ("frame", "lane", "words"),
    [
        (news(FrameKind.ACCEPT, "", collective=40), P2P_LANE, "refers to message 40"),
        (news(FrameKind.GOODBYE, "it is done"), P2P_LANE, "kind 20 on a p2p lane"),
        (news(FrameKind.ABORT, "8 x", collective=1), P2P_LANE, "gave up on exchange 1 and names no rank of this ring"),
        (news(FrameKind.OFFER, "of what?", collective=1), 0, "a p2p frame on a lane for collectives"),
        (b"GET / HTTP/1.1\r\nHost: somewhere.example\r\nAccept: */*\r\n\r\n", P2P_LANE, "not a ringwide frame"),
    ],
    ids=["answer", "goodbye", "words", "lane", "stranger"],
)
async def test_frames_that_break_the_rules_end_the_ring_and_say_so(frame: bytes, lane: int, words: str) -> None:
    async def act(ring: Ring) -> None:
        await ring.barrier()
        if ring.rank == 1:
            ring._engine.links[0].lanes[lane].socket.send(frame)
        error = await error_of(ring.receive(np.zeros(1)))
        assert isinstance(error, ringwide.RemoteProtocolError if ring.rank == 0 else ringwide.PeerLost)
        assert ring.rank == 1 or words in str(error)

    await on_every_rank(2, act, messages=True)


async def test_a_setting_that_only_one_rank_has_is_a_disagreement() -> None:
    peers = free_peers(2)

    async def one_rank(rank: int) -> None:
        async with ringwide.join(rank=rank, peers=peers, config=ringwide.RingConfig(messages=rank == 1)):
            raise AssertionError("this must not form")

    for error in await asyncio.gather(*[error_of(one_rank(rank)) for rank in range(2)]):
        assert isinstance(error, ringwide.Disagreement)
        assert error.field == "messages"


# -- cancelled at every moment


class Moments:
    """Counts what happens to the messages of one rank, and cancels a task when so much has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._left = 0
        for place, name in ((Endpoint, "landing"), (Endpoint, "arrived"), (OutgoingTransfer, "sent")):
            monkeypatch.setattr(place, name, self._counted(getattr(place, name)))

    def _counted(self, function: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            self.passed()
            try:
                return function(*arguments)
            finally:
                self.passed()

        return counted

    def cancel(self, task: "asyncio.Task[Any]", after: int) -> None:
        self._task, self._left = task, after

    def passed(self) -> None:
        self._left -= 1
        if self._left == 0 and self._task is not None:
            self._task.cancel()


@pytest.mark.parametrize("who", [0, 1], ids=["sender", "receiver"])
async def test_a_message_that_is_cancelled_at_any_moment_arrives_or_does_not(
    who: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time a moment later. The other gets the message, or `CollectiveAborted`, or nothing and waits on."""
    moments, together = Moments(monkeypatch), [Everyone(2) for _ in range(100)]
    outcomes: list[bool] = []

    async def act(ring: Ring) -> None:
        for moment in itertools.count(1):
            ours = torch.full((20_000,), float(moment if ring.rank == 0 else -1))
            task: asyncio.Task[Any] = asyncio.create_task(
                ring.send(ours, 1) if ring.rank == 0 else ring.receive(ours, 0)
            )
            if ring.rank == who:
                moments.cancel(task, moment)
                await asyncio.wait([task])
                moments.cancel(task, 0)
                outcomes.append(task.cancelled())
            await together[moment].wait()
            await to_and_fro(ring)
            task.cancel()  # a receive for which nothing was offered, or an offer that nobody wants any more
            await asyncio.wait([task])
            error = None if task.cancelled() else task.exception()
            assert error is None or (isinstance(error, ringwide.CollectiveAborted) and ring.rank != who)
            if ring.rank == 1:
                done = not task.cancelled() and error is None
                assert bool((ours == (moment if done else -1)).all())
            await to_and_fro(ring)
            if not outcomes[-1]:
                break
        await ring.barrier()

    await on_every_rank(2, act, messages=True, segment_bytes=8192)
    assert len(outcomes) > 10


async def to_and_fro(ring: Ring) -> None:
    """When this returns, all that was on the p2p lanes before has been heard."""
    sent = asyncio.create_task(ring.send(np.ones(1), 1 - ring.rank, tag=1))
    await ring.receive(np.zeros(1), 1 - ring.rank, tag=1)
    await sent
