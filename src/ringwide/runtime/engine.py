"""What a ring is made of below its tensors: put together, set going when all ranks have met, taken apart at the end.

`Ring` (ring.py) turns tensors into buckets and asks for a call_plan; the engine carries out its plan together with the
other ranks.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ringwide.bootstrap.peers import Address, parse_address
from ringwide.collectives.dispatcher import Dispatcher
from ringwide.collectives.peer_loss import Leaving
from ringwide.collectives.plan import CollectiveKind, Planner, Request
from ringwide.collectives.prepared import Prepared
from ringwide.compression.codecs import registry
from ringwide.compression.codecs.base import Array
from ringwide.compression.jobs import CodecPool
from ringwide.compression.policy import CodecPolicy
from ringwide.config.ring_config import RingConfig
from ringwide.errors import ConfigError, RingClosed, StartTimeout
from ringwide.health.heartbeats import Heartbeats
from ringwide.observe import statistics
from ringwide.p2p.all_to_all import AllToAlls
from ringwide.p2p.endpoint import Endpoint
from ringwide.p2p.messages import Messages
from ringwide.runtime.call_queue import CallQueue
from ringwide.runtime.callers import Descent
from ringwide.runtime.connections import Connections
from ringwide.runtime.signals import LeaveRequest
from ringwide.runtime.topology import NETWORK_BYTES, NOTES, Topology, notes
from ringwide.tensors.bucket import Bucket, BufferPool
from ringwide.transport.link import Link
from ringwide.transport.sockets import SocketSettings


class PointToPoint(NamedTuple):
    """What a ring with `messages` has beside its collectives."""

    endpoint: Endpoint
    messages: Messages
    exchanges: AllToAlls


def point_to_point(
    *,
    rank: int,
    links: Mapping[int, Link],
    dispatcher: Dispatcher,
    config: RingConfig,
    pool: BufferPool,
    planner: Planner,
    leaving: Callable[[], bool],
) -> PointToPoint:
    """What waits for a message is looked at together with the collectives, and ends when the ring does."""
    endpoint = Endpoint(
        rank=rank,
        links=links,
        clock=asyncio.get_running_loop(),
        segment_bytes=config.segment_bytes,
        timeout_seconds=config.collective_timeout_seconds,
        warn_after_seconds=config.warn_after_seconds,
        on_open=dispatcher.deadlines.start_ticking,
        on_lane_ended=dispatcher.peer_loss.other_lane_ended,
    )
    dispatcher.deadlines.transfers = dispatcher.peer_loss.transfers = endpoint
    exchanges = AllToAlls(
        endpoint,
        pool,
        rank=rank,
        size=1 + len(links),
        planner=planner,
        is_ahead=dispatcher.channels.is_ahead,
        leaving=leaving,
    )
    return PointToPoint(endpoint, Messages(endpoint, pool, leaving=leaving), exchanges)


_MOST_THREADS = 4
"""More cannot be kept busy by one link."""
_STRANGERS_SECONDS = 0.5
"""How long a rank that could not join waits for others to hear why: they have nothing else to expect of it."""


class Engine:
    """The engine of one rank."""

    def __init__(
        self,
        rank: int,
        addresses: Sequence[Address],
        config: RingConfig,
        told: LeaveRequest,
        descent: Descent | None = None,
    ) -> None:
        self._rank, self._size, self.config = rank, len(addresses), config
        self._address = addresses[rank]
        sockets = SocketSettings(config.buffer_bytes, config.keepalive_seconds, config.user_timeout_seconds)
        self.connections = Connections(rank, addresses, sockets=sockets, segment_bytes=config.segment_bytes)
        self.links = self.connections.links
        self.codec_policy, self._codec_pool = _codec_policy(rank, config), CodecPool()
        self.dispatcher = Dispatcher(
            rank=rank,
            links=self.links,
            clock=asyncio.get_running_loop(),
            timeout_seconds=config.collective_timeout_seconds,
            warn_after_seconds=config.warn_after_seconds,
            codec_policy=self.codec_policy,
            codec_pool=self._codec_pool,
        )
        self._heartbeats = Heartbeats(
            rank=rank,
            links=self.links,
            suspect_after_seconds=config.suspect_after_seconds,
            called=lambda: self.dispatcher.called,
            on_silent=self.dispatcher.peer_loss.silent,
            on_lost=self.dispatcher.peer_loss.heartbeat_lane_ended,
        )
        for link in self.links.values():
            link.on_ended = self.dispatcher.peer_loss.stream_ended
        self.planner = Planner(
            rank=rank,
            size=self._size,
            segment_bytes=config.segment_bytes,
            algorithm=config.algorithm,
            tree_bytes=config.tree_bytes_where(NETWORK_BYTES),
        )
        self.calls = CallQueue(
            self.dispatcher,
            express_lanes=self.connections.express_lanes,
            linger_seconds=config.linger_seconds,
            leaving=lambda: told.due,
            descent=descent,
        )
        self.pool = BufferPool()
        self._point_to_point = self._make_point_to_point(told) if config.messages else None
        self._formed = False

    def _make_point_to_point(self, told: LeaveRequest) -> PointToPoint:
        return point_to_point(
            rank=self._rank,
            links=self.links,
            dispatcher=self.dispatcher,
            config=self.config,
            pool=self.pool,
            planner=self.planner,
            leaving=lambda: told.due,
        )

    def __str__(self) -> str:
        return "left" if self.calls.left else str(self.dispatcher.over or "joined")

    # -- while it runs

    @property
    def point_to_point(self) -> PointToPoint:
        if self._point_to_point is None:
            raise ConfigError("this ring carries no messages: join it with RingConfig(messages=True), on every rank")
        return self._point_to_point

    def statistics(self) -> statistics.Statistics:
        return statistics.Statistics(
            collectives=self.calls.made,
            network_seconds=self.calls.running_seconds,
            buffer_bytes_asked=self.config.buffer_bytes,
            links=statistics.of_links(self.links.values(), self.dispatcher.ledgers, self._heartbeats.stragglers),
            threshold_bytes=None if self.codec_policy is None else self.codec_policy.threshold.reported,
            choices=() if self.codec_policy is None else self.codec_policy.choices(),
            slow=self._heartbeats.stragglers.verdict(),
        )

    # -- joining and leaving

    async def form(self, listener: socket.socket | None) -> None:
        """Meet the other ranks, and wait until all have met."""
        config, started = self.config, time.perf_counter()
        self.dispatcher.deadlines.suspended = True
        self.dispatcher.peer_loss.on_over = self.connections.fail
        await self.connections.open(
            events=self.dispatcher,
            transfers=None if self._point_to_point is None else self._point_to_point.endpoint,
            heartbeats=self._heartbeats,
            lanes_to=lambda peer: config.lanes if self.planner.exchanges_bulk(peer) else 0,
            settings=config.compared(),
            door=self._door(listener),
            protection=config.load_protection(),
            same_host=config.same_host,
            timeout_seconds=config.start_timeout_seconds,
        )
        self.dispatcher.peer_loss.on_over = None
        self._heartbeats.start()
        cores, ranks = os.sched_getaffinity(0), self.connections.ranks_on_this_host()
        if ranks > len(cores):
            self.calls.linger_seconds = 0.0  # those with the answer need the cores
        if self.codec_policy is not None:
            self.codec_policy.threads = _threads(config, len(cores) // ranks - 1)
            self._codec_pool.staff(self.codec_policy.threads)
        noted = notes(one_host=ranks == self._size, by_memory=self.connections.all_by_memory(), cores=cores)
        await self._wait_for_all(noted, config.start_timeout_seconds - (time.perf_counter() - started))
        where = Topology.of(noted, self._size)
        self.planner.agree(tree_bytes=config.tree_bytes_where(where.tree_bytes), express_bytes=where.express_bytes)
        self._formed = True
        self.dispatcher.deadlines.suspended = False
        self.dispatcher.deadlines.heartbeats = (
            self._heartbeats
        )  # not before: who still looks for others does not answer yet

    def _door(self, listener: socket.socket | None) -> Address | socket.socket:
        listen = self.config.listen
        if listen is None:
            return self._address if listener is None else listener
        if listener is not None:
            raise ConfigError(f"listen: {listen}: but a listening socket was given too; remove one of them")
        return parse_address(listen, "listen")

    async def _wait_for_all(self, noted: Array, seconds: float) -> None:
        """All our connections are there; others may still wait for some of theirs. Meanwhile all notes are combined."""
        request = Request(CollectiveKind.BARRIER, "who is where", (NOTES,))
        bring = Prepared(self.planner.plan(request), [Bucket(noted, None, np.bitwise_or)], None)
        try:
            async with asyncio.timeout(seconds):
                await self.calls.make(lambda _: bring)
        except TimeoutError as error:
            missing, limit = ["ranks that wait for others"], self.config.start_timeout_seconds
            raise StartTimeout(rank=self._rank, missing=missing, seconds=limit) from error

    async def leave(self, reason: str) -> None:
        """Say goodbye, wait until the others have read all that was sent to them, close everything."""
        self.calls.left = True
        self.dispatcher.peer_loss.on_over = None
        try:
            await self.connections.stop_listening()
        finally:
            self.dispatcher.say_goodbye(reason)
            self.dispatcher.close(RingClosed("this ring has been left while a call was still open; await every call"))
            self._codec_pool.close()
            try:
                await self._drain()
            finally:
                self._heartbeats.close()

    def _patience(self) -> float:
        """How long leaving may stand still. Where somebody is lost, others may not hear us, though they live."""
        if not self._formed:
            return _STRANGERS_SECONDS
        longest = self.config.collective_timeout_seconds
        return min(longest, self.config.suspect_after_seconds) if self.dispatcher.peer_loss.lost else longest

    async def _drain(self) -> None:
        peer_loss, loop = self.dispatcher.peer_loss, asyncio.get_running_loop()
        all_have_read = asyncio.Event()
        leaving = peer_loss.leaving = Leaving(
            links=self.links,
            clock=loop,
            timeout_seconds=self._patience(),
            warn_after_seconds=self.config.warn_after_seconds,
            heartbeats=self._heartbeats,
            on_done=all_have_read.set,
        )
        try:
            leaving.begin(peer_loss.lost)
            await all_have_read.wait()
        finally:
            leaving.cut_short()


def _codec_policy(rank: int, config: RingConfig) -> CodecPolicy | None:
    if config.codec == "none":
        return None
    return CodecPolicy(
        rank=rank,
        codecs=registry.AUTO if config.codec == "auto" else [config.make_codec()],
        auto=config.codec == "auto",
        allow_lossy=config.allow_lossy,
        threshold_bytes=None if config.threshold_bytes == "auto" else config.threshold_bytes,
        error_feedback=None if config.error_feedback == "auto" else config.error_feedback,
        time=time.thread_time,  # what a thread really spends, not what it waits for the interpreter
    )


def _threads(config: RingConfig, idle_cores: int) -> int:
    if config.codec_threads == "auto":
        return min(max(0, idle_cores), _MOST_THREADS)
    return config.codec_threads
