"""Core of a ring on one rank: its connections, and everything that hears of the other ranks through them.

Lanes are read from the moment they are connected, so what they tell is made before the ranks meet: the dispatcher, the
heartbeats and the endpoint of messages. Forming the ring returns a `FormedRing`, the frozen description of what was
found. Whatever depends on that is made afterwards, by the engine.
"""

import asyncio
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
from ringwide.compression.codecs import registry
from ringwide.compression.codecs.base import Array
from ringwide.compression.jobs import CodecPool
from ringwide.compression.policy import CodecPolicy
from ringwide.config.ring_config import RingConfig
from ringwide.errors import ConfigError, RingClosed, RingwideError, StartTimeout
from ringwide.health.heartbeats import Heartbeats
from ringwide.p2p.endpoint import Endpoint
from ringwide.runtime.connections import Connections
from ringwide.tensors.bucket import Bucket, BucketShape
from ringwide.transport.link import EXPRESS_BYTES, EXPRESS_MEMORY_BYTES, Link
from ringwide.transport.sockets import SocketSettings

_UNFORMED_SECONDS = 0.5
"""How long a rank that could not join waits for others to hear why: they have nothing else to expect of it."""

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


class RingCore:
    """The core of one rank: `form` it, build an engine on what that returns, `leave` it."""

    def __init__(
        self, rank: int, addresses: Sequence[Address], config: RingConfig, *, leaving: Callable[[], bool]
    ) -> None:
        """`leaving`: was this process told to end?"""
        self.rank, self.size, self.config, self.leaving = rank, len(addresses), config, leaving
        self._address = addresses[rank]
        sockets = SocketSettings(config.buffer_bytes, config.keepalive_seconds, config.user_timeout_seconds)
        self._connections = Connections(
            rank,
            addresses,
            sockets=sockets,
            segment_bytes=config.segment_bytes,
            on_stream_ended=lambda peer: self.dispatcher.peer_loss.stream_ended(peer),
        )
        self.links = self._connections.links
        self.endpoint = self._make_endpoint() if config.messages else None
        self.codec_pool = CodecPool()
        self.codec_policy = _codec_policy(rank, config, threads=lambda: self.codec_pool.threads)
        self.dispatcher = Dispatcher(
            rank=rank,
            links=self.links,
            clock=asyncio.get_running_loop(),
            timeout_seconds=config.collective_timeout_seconds,
            warn_after_seconds=config.warn_after_seconds,
            codec_policy=self.codec_policy,
            codec_pool=self.codec_pool,
            transfers=self.endpoint,
            on_over=self._connections.fail,
        )
        self.heartbeats = Heartbeats(
            rank=rank,
            links=self.links,
            suspect_after_seconds=config.suspect_after_seconds,
            called=lambda: self.dispatcher.called,
            on_silent=self.dispatcher.peer_loss.silent,
            on_lost=self.dispatcher.peer_loss.heartbeat_lane_ended,
        )
        self._formed = False

    def _make_endpoint(self) -> Endpoint:
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

    # -- joining

    async def form(self, listener: socket.socket | None) -> FormedRing:
        """Meet the other ranks, and wait until all have met."""
        config, started = self.config, time.perf_counter()
        planner = self.planner(tree_bytes=NETWORK_BYTES)  # nobody knows yet where the others are
        await self._connections.open(
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
        cores, ranks_here = os.sched_getaffinity(0), self._connections.ranks_on_this_host()
        noted = notes(one_host=ranks_here == self.size, by_memory=self._connections.all_by_memory(), cores=cores)
        await self._combine_notes(planner, noted, config.start_timeout_seconds - (time.perf_counter() - started))
        self._formed = True
        self.dispatcher.deadlines.start(self.heartbeats)  # not before: who still looks for others does not answer yet
        topology = Topology.of(noted, self.size)
        return FormedRing(self.rank, self.size, self.links, topology, ranks_here, len(cores))

    def _listen_at(self, listener: socket.socket | None) -> Address | socket.socket:
        listen = self.config.listen
        if listen is None:
            return self._address if listener is None else listener
        if listener is not None:
            raise ConfigError(f"listen: {listen}: but a listening socket was given too; remove one of them")
        return parse_address(listen, "listen")

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

    # -- leaving

    async def leave(self, reason: str) -> None:
        """Say goodbye, wait until the others have read all that was sent to them, close everything."""
        try:
            await self._connections.stop_listening()
        finally:
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
        longest = self.config.collective_timeout_seconds
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
