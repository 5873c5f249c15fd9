"""Core of a ring on one rank: its connections, and everything that hears of the other ranks through them.

Lanes are read from the moment they are connected, so what they tell is made before the ranks meet: the dispatcher, the
heartbeats and the endpoint of messages. Forming the ring returns a `FormedRing`, the frozen description of what was
found. Whatever depends on that is made afterwards, by the engine.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ringwide.bootstrap.peers import Address, parse_address
from ringwide.collectives.dispatcher import Dispatcher
from ringwide.collectives.peer_loss import Leaving
from ringwide.collectives.plan import CollectiveKind, Planner, Request
from ringwide.collectives.running_collective import LaneSharing
from ringwide.compression.codecs import registry
from ringwide.compression.codecs.base import Array
from ringwide.compression.jobs import CodecPool
from ringwide.compression.policy import CodecPolicy
from ringwide.config.ring_config import RingConfig
from ringwide.errors import ConfigError, RingClosed, RingwideError, StartTimeout
from ringwide.health.heartbeats import Heartbeats
from ringwide.health.stragglers import SlowRank
from ringwide.p2p.endpoint import Endpoint
from ringwide.runtime.connections import Connections, Subgroups
from ringwide.tensors.bucket import Bucket, BucketShape
from ringwide.transport.link import EXPRESS_BYTES, EXPRESS_MEMORY_BYTES, Link
from ringwide.transport.sockets import SocketSettings

logger = logging.getLogger("ringwide.runtime")

_UNFORMED_SECONDS = 0.5
"""How long a rank that could not join waits for others to hear why: they have nothing else to expect of it."""
_MOST_CODEC_THREADS = 4
"""More cannot be kept busy by one link."""

KIB = 1024
NETWORK_BYTES, HOST_BYTES, MEMORY_BYTES, CROWDED_MEMORY_BYTES = 64 * KIB, 256 * KIB, 512 * KIB, 1024 * KIB
"""Up to which size the tree pays: docs/decisions/0017-one-owner-for-every-bit.md has the arithmetic."""
_CORES_LIMIT = 1024
NOTES = BucketShape("uint8", 2 + _CORES_LIMIT, 1)


def notes(*, one_host: bool, by_memory: bool, cores: Collection[int]) -> Array:
    """What one rank sees: are all others on its host, does it share memory with all, and which cores may it use?"""
    noted = np.zeros(NOTES.count, np.uint8)
    noted[:2] = not one_host, not by_memory
    noted[[2 + core % _CORES_LIMIT for core in cores]] = 1
    return noted


class Topology(NamedTuple):
    """What the notes of all ranks say together. One rank has combined them, so all have the same."""

    one_host: bool
    by_memory: bool
    crowded: bool
    """They share one host, and have fewer cores together than they are. Ranks pinned to a core each take no turns."""

    @classmethod
    def of(cls, combined: Array, size: int) -> "Topology":
        one_host, by_memory = not combined[0], not combined[1]
        return cls(one_host, by_memory, one_host and size > int(np.count_nonzero(combined[2:])))

    @property
    def express_bytes(self) -> int:
        return EXPRESS_MEMORY_BYTES if self.by_memory else EXPRESS_BYTES

    @property
    def tree_bytes(self) -> int:
        """The largest bucket for which the tree is faster than the ring."""
        if not self.one_host:
            return NETWORK_BYTES
        if not self.by_memory:
            return HOST_BYTES
        return CROWDED_MEMORY_BYTES if self.crowded else MEMORY_BYTES


@dataclass(frozen=True, slots=True)
class FormedRing:
    """What was found when the ring formed. `topology` is the same on every rank, the rest is this rank's own."""

    rank: int
    size: int
    links: Mapping[int, Link]
    topology: Topology
    ranks_here: int
    """How many ranks run on this host, this one included."""
    cores_here: int
    """How many cores this process may use."""


class Core:
    """The part of a core that a ring and its subgroups have alike: whoever hears of the other ranks over `links`."""

    heartbeats: Heartbeats

    def __init__(
        self,
        rank: int,
        links: Mapping[int, Link],
        config: RingConfig,
        *,
        leaving: Callable[[], bool],
        codec_pool: CodecPool,
        sharing: LaneSharing,
        on_over: Callable[[RingwideError], None],
    ) -> None:
        """`leaving`: was this process told to end?"""
        self.rank, self.size, self.links, self.config, self.leaving = rank, len(links) + 1, links, config, leaving
        self.codec_pool = codec_pool
        self.codec_policy = _codec_policy(rank, config, threads=lambda: codec_pool.threads)
        self.endpoint = self._make_endpoint(sharing) if config.messages else None
        self.dispatcher = Dispatcher(
            rank=rank,
            links=links,
            clock=asyncio.get_running_loop(),
            timeout_seconds=config.collective_timeout_seconds,
            warn_after_seconds=config.warn_after_seconds,
            codec_policy=self.codec_policy,
            codec_pool=codec_pool,
            transfers=self.endpoint,
            on_over=on_over,
            sharing=sharing,
        )

    def _make_endpoint(self, sharing: LaneSharing) -> Endpoint:
        """It and the dispatcher know of each other: what waits for a message is looked at together with the
        collectives, and ends when the ring does."""
        return Endpoint(
            rank=self.rank,
            links=self.links,
            clock=asyncio.get_running_loop(),
            segment_bytes=self.config.segment_bytes,
            timeout_seconds=self.config.collective_timeout_seconds,
            warn_after_seconds=self.config.warn_after_seconds,
            on_open=lambda: self.dispatcher.deadlines.start_ticking(),
            on_lane_ended=lambda peer, reason: self.dispatcher.peer_loss.other_lane_ended(peer, reason),
            sharing=sharing,
        )

    def planner(self, *, tree_bytes: int, express_bytes: int = EXPRESS_BYTES) -> Planner:
        config = self.config
        return Planner(
            rank=self.rank,
            size=self.size,
            segment_bytes=config.segment_bytes,
            algorithm=config.algorithm,
            tree_bytes=config.tree_bytes_where(tree_bytes),
            express_bytes=express_bytes,
        )

    async def compare_notes(self, planner: Planner, seconds: float) -> FormedRing:
        """Find out where all ranks are, together with them. All have connected to all when this returns."""
        express_lanes = [link.lanes[0] for link in self.links.values()]
        cores, ranks_here = os.sched_getaffinity(0), 1 + sum(lane.same_host for lane in express_lanes)
        noted = notes(
            one_host=ranks_here == self.size,
            by_memory=all(lane.transport == "memory" for lane in express_lanes),
            cores=cores,
        )
        await self._combine_notes(planner, noted, seconds)
        topology = Topology.of(noted, self.size)
        return FormedRing(self.rank, self.size, self.links, topology, ranks_here, len(cores))

    async def _combine_notes(self, planner: Planner, noted: Array, seconds: float) -> None:
        """All our connections are there; others may still wait for some of theirs. Meanwhile all notes are combined."""
        plan = planner.plan(Request(CollectiveKind.BARRIER, "who is where", (NOTES,)))
        combined: asyncio.Future[RingwideError | None] = asyncio.get_running_loop().create_future()

        def on_done(error: RingwideError | None) -> None:
            if not combined.done():  # else joining was cancelled, and its task has not had its turn yet
                combined.set_result(error)

        collective = self.dispatcher.submit(plan, [Bucket(noted, None, np.bitwise_or)], on_done)
        try:
            async with asyncio.timeout(seconds):
                error = await combined
        except TimeoutError as problem:
            missing, limit = ["ranks that wait for others"], self.config.start_timeout_seconds
            raise StartTimeout(rank=self.rank, missing=missing, seconds=limit) from problem
        finally:
            if not combined.done() or combined.cancelled():
                self.dispatcher.abort(collective, "it has given up joining", leaving=self.leaving())
        if error is not None:
            raise error

    def slowest(self) -> SlowRank | None:
        """The slowest rank, if one clearly is."""
        return self.heartbeats.stragglers.verdict()

    async def leave(self, reason: str) -> None:
        """Say goodbye, and see to it that others get all that was sent to them."""
        raise NotImplementedError


class RingCore(Core):
    """The core of one rank: `form` it, build an engine on what that returns, `leave` it."""

    def __init__(
        self, rank: int, addresses: Sequence[Address], config: RingConfig, *, leaving: Callable[[], bool]
    ) -> None:
        self._address = addresses[rank]
        self.connections = Connections(
            rank,
            addresses,
            sockets=SocketSettings(config.buffer_bytes, config.keepalive_seconds, config.user_timeout_seconds),
            segment_bytes=config.segment_bytes,
            on_stream_ended=self._on_stream_ended,
        )
        self.subgroups = Subgroups()
        self.sharing = LaneSharing(others=self.subgroups)
        super().__init__(
            rank,
            self.connections.links,
            config,
            leaving=leaving,
            codec_pool=CodecPool(),
            sharing=self.sharing,
            on_over=self.connections.fail,
        )
        self.heartbeats = Heartbeats(
            rank=rank,
            links=self.connections.links,
            suspect_after_seconds=config.suspect_after_seconds,
            called=lambda: self.dispatcher.channels.default.called,
            on_silent=self._on_silent,
            on_lost=self._on_heartbeat_lane_ended,
        )
        self._formed = False

    # -- joining

    async def form(self, listener: socket.socket | None) -> FormedRing:
        """Meet the other ranks, and wait until all have met."""
        config, started = self.config, time.perf_counter()
        planner = self.planner(tree_bytes=NETWORK_BYTES)  # nobody knows yet where the others are
        await self.connections.open(
            events=self.dispatcher,
            transfers=self.endpoint,
            heartbeats=self.heartbeats,
            lanes_to=lambda peer: config.lanes if planner.exchanges_bulk(peer) else 0,
            settings=config.compared(),
            listen_at=self._listen_at(listener),
            protection=config.load_protection(),
            same_host=config.same_host,
            timeout_seconds=config.start_timeout_seconds,
        )
        self.heartbeats.start()
        formed = await self.compare_notes(planner, config.start_timeout_seconds - (time.perf_counter() - started))
        self._formed = True
        self.dispatcher.deadlines.start(self.heartbeats)  # not before: who still looks for others does not answer yet
        self.codec_pool.start_threads(_codec_threads(config, formed))
        self._log_joined(formed, time.perf_counter() - started)
        return formed

    def _log_joined(self, formed: FormedRing, seconds: float) -> None:
        transports = {lane.transport for link in formed.links.values() for lane in link.lanes.values()}
        algorithm: str = self.config.algorithm
        if algorithm == "auto":
            algorithm = f"tree up to {self.config.tree_bytes_where(formed.topology.tree_bytes)} bytes, then ring"
        logger.info(
            "joined rank=%d size=%d ranks_here=%d seconds=%.3f transport=%s algorithm=%r codec=%s",
            *(formed.rank, formed.size, formed.ranks_here, seconds),
            *(",".join(sorted(transports)) or "none", algorithm, self.config.codec),
        )

    def _listen_at(self, listener: socket.socket | None) -> Address | socket.socket:
        listen = self.config.listen
        if listen is None:
            return self._address if listener is None else listener
        if listener is not None:
            raise ConfigError(f"listen: {listen}: but a listening socket was given too; remove one of them")
        return parse_address(listen, "listen")

    # -- what happens to connections concerns subgroups too

    def _on_stream_ended(self, peer: int) -> None:
        self.subgroups.on_stream_ended(peer)
        self.dispatcher.peer_loss.stream_ended(peer)

    def _on_silent(self, peers: Sequence[int], seconds: float) -> None:
        self.subgroups.on_silent(peers, seconds)
        self.dispatcher.peer_loss.silent(peers, seconds)

    def _on_heartbeat_lane_ended(self, peer: int, reason: Exception) -> None:
        self.subgroups.on_heartbeat_lane_ended(peer, reason)
        self.dispatcher.peer_loss.heartbeat_lane_ended(peer, reason)

    # -- leaving

    async def leave(self, reason: str) -> None:
        """Say goodbye, wait until the others have read all that was sent to them, close everything."""
        try:
            await self.connections.stop_listening()
        finally:
            self.subgroups.leave(reason)
            self.dispatcher.say_goodbye(reason)
            self.dispatcher.close(RingClosed("this ring has been left while a call was still open; await every call"))
            self.codec_pool.close()
            try:
                await self._drain()
            finally:
                self.heartbeats.close()

    def _patience(self) -> float:
        """How long leaving may stand still. Where somebody is lost, others may not hear us, though they live."""
        if not self._formed:
            return _UNFORMED_SECONDS
        longest = self.dispatcher.deadlines.timeout_seconds
        return min(longest, self.config.suspect_after_seconds) if self.dispatcher.peer_loss.lost else longest

    async def _drain(self) -> None:
        all_have_read = asyncio.Event()
        leaving = Leaving(
            links=self.links,
            clock=asyncio.get_running_loop(),
            timeout_seconds=self._patience(),
            warn_after_seconds=self.config.warn_after_seconds,
            heartbeats=self.heartbeats,
            on_done=all_have_read.set,
        )
        try:
            self.dispatcher.peer_loss.leave(leaving)
            await all_have_read.wait()
        finally:
            leaving.cut_short()


def _codec_threads(config: RingConfig, formed: FormedRing) -> int:
    """Cores that no rank of this host needs for itself."""
    if config.codec == "none":
        return 0
    if config.codec_threads == "auto":
        return min(max(0, formed.cores_here // formed.ranks_here - 1), _MOST_CODEC_THREADS)
    return config.codec_threads


def _codec_policy(rank: int, config: RingConfig, *, threads: Callable[[], int]) -> CodecPolicy | None:
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
        threads=threads,
    )
