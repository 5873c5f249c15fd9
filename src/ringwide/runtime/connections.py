"""Connections of one rank: opened when the ring forms, closed when it is left, and shared with its subgroups."""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any
from weakref import WeakSet

from ringwide.bootstrap.form_ring import RingFormation
from ringwide.bootstrap.handshake import HandshakeTerms
from ringwide.bootstrap.listen import open_listeners
from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.protection import Protection
from ringwide.bootstrap.unix_sockets import SameHost
from ringwide.collectives.bucket_operation import LaneLike
from ringwide.collectives.dispatcher import Dispatcher
from ringwide.collectives.running_collective import unknown_epoch
from ringwide.errors import RemoteProtocolError
from ringwide.health.heartbeats import Heartbeats
from ringwide.p2p.endpoint import Endpoint
from ringwide.protocol.frame import Header
from ringwide.protocol.handshake import Setting
from ringwide.protocol.heartbeat import HEARTBEAT_LANE
from ringwide.protocol.p2p import P2P_LANE
from ringwide.transport.lane import Events, Lane
from ringwide.transport.lane_buffers import Scratch
from ringwide.transport.link import (
    BULK_STAGING_BYTES,
    EXPRESS_BYTES,
    EXPRESS_MEMORY_BYTES,
    EXPRESS_SLOTS,
    MOST_EXPRESS_ARENAS,
    P2P_STAGING_BYTES,
    STAGING_BYTES,
    Link,
)
from ringwide.transport.shm_arena import ARENA_DESCRIPTORS, ArenaShape, descriptors_to_spare
from ringwide.transport.shm_lane import SharedLane, SharedWire
from ringwide.transport.sockets import SocketSettings, drop, tune
from ringwide.transport.wire import Wire

_HEARTBEAT_BUFFER_BYTES = 16 * 1024
_PEERS_IN_FULL_BYTES = 1500
"""A longer list of peers is compared by its digest: a whole handshake has 4 KiB."""
_KEPT_LIMIT_BYTES = 4 * 1024 * 1024
_FRAME_BYTES = 640
"""What a kept frame costs beside its payload."""


_all: "WeakSet[Connections]" = WeakSet()


class Connections:
    """The links to all other ranks, and the sockets on which this rank is found."""

    def __init__(
        self,
        rank: int,
        addresses: Sequence[Address],
        *,
        sockets: SocketSettings,
        segment_bytes: int,
        on_stream_ended: Callable[[int], None],
    ) -> None:
        self._rank, self._addresses = rank, addresses
        self._sockets, self._segment_bytes = sockets, segment_bytes
        self.links = {peer: Link(peer, on_stream_ended) for peer in range(len(addresses)) if peer != rank}
        self._listeners: tuple[socket.socket, ...] = ()
        self._server: asyncio.Task[None] | None = None
        self._formation: RingFormation | None = None  # while this rank listens
        self._opened = False
        self._heartbeats: Heartbeats | None = None
        self._shares_express = self._shares_bulk = False
        _all.add(self)

    async def open(
        self,
        *,
        events: Events,
        transfers: Events | None,
        heartbeats: Heartbeats,
        lanes_to: Callable[[int], int],
        settings: Mapping[str, Setting],
        listen_at: Address | socket.socket,
        protection: Protection,
        same_host: SameHost,
        timeout_seconds: float,
    ) -> None:
        """Find the other ranks. `lanes_to` says how many bulk lanes a peer gets beside its express and heartbeat lanes.

        If there is somebody to hear of `transfers`, every peer gets a p2p lane as well.

        `listen_at` is an address, or a socket that listens already, which is ours from now on.
        """
        self._heartbeats = heartbeats
        beside = (HEARTBEAT_LANE,) if transfers is None else (P2P_LANE, HEARTBEAT_LANE)
        if same_host == "auto":
            self._share_as_descriptors_allow(sum(lanes_to(peer) for peer in self.links))
        terms = HandshakeTerms(
            self._rank, len(self._addresses), self._peers_in_common(), settings, protection, self._shape_for
        )
        formation = self._formation = RingFormation(
            terms=terms,
            addresses=self._addresses,
            lanes={peer: (*range(1 + lanes_to(peer)), *beside) for peer in self.links},
            on_lane=lambda peer, index, wire, sealed: self._add_lane(
                transfers if transfers is not None and index == P2P_LANE else events,
                heartbeats,
                peer,
                index,
                wire,
                sealed,
            ),
            same_host=same_host,
        )
        self._listeners = open_listeners(
            listen_at,
            self._addresses[self._rank],
            rank=self._rank,
            beyond_loopback=protection.will_do_beyond_loopback,
            same_host=same_host,
        )
        self._server = asyncio.create_task(formation.serve(*self._listeners))
        await formation.run(timeout_seconds=timeout_seconds)

        self._opened = True

    def expect_bulk(self, peers: Iterable[int], lanes: int) -> Mapping[int, Sequence[int]]:
        """Expect bulk lanes of those of these peers that have none yet. Returns what `open_more` then opens."""
        missing = {peer: range(1, 1 + lanes) for peer in peers if 1 not in self.links[peer].lanes}
        if self._formation is not None:
            self._formation.expect(missing)
        return missing

    async def open_more(self, lanes: Mapping[int, Sequence[int]], *, timeout_seconds: float) -> None:
        if self._formation is not None and lanes:
            await self._formation.open_more(lanes, timeout_seconds=timeout_seconds)

    def fail(self, error: Exception) -> None:
        """A rank that had come is gone again: `open` raises this instead of waiting on."""
        if self._formation is not None and not self._opened:
            self._formation.fail(error)

    def _peers_in_common(self) -> str:
        text = "\n".join(map(str, self._addresses))
        return (
            text
            if len(json.dumps(text)) <= _PEERS_IN_FULL_BYTES
            else blake2b(text.encode(), digest_size=16).hexdigest()
        )

    def _share_as_descriptors_allow(self, bulk_lanes: int) -> None:
        """A ring that forms without shared memory must not fail with it: half of what may be opened is for others."""
        lanes = descriptors_to_spare() // 2 // ARENA_DESCRIPTORS
        self._shares_bulk = bulk_lanes <= lanes
        few = len(self._addresses) <= MOST_EXPRESS_ARENAS
        self._shares_express = few and bulk_lanes + len(self.links) <= lanes

    def _shape_for(self, lane: int) -> ArenaShape | None:
        if lane == 0:
            return ArenaShape(EXPRESS_SLOTS, EXPRESS_MEMORY_BYTES) if self._shares_express else None
        return ArenaShape.of(self._segment_bytes) if lane < P2P_LANE and self._shares_bulk else None

    def _add_lane(
        self, events: Events, heartbeats: Heartbeats, peer: int, index: int, wire: Wire, sealed: bool
    ) -> None:
        if index == HEARTBEAT_LANE:
            tune(wire.socket, replace(self._sockets, buffer_bytes=_HEARTBEAT_BUFFER_BYTES), always_read=True)
            heartbeats.add(peer, wire)
            return
        tune(wire.socket, self._sockets, always_read=False)
        given: dict[str, Any] = {"peer": peer, "index": index, "events": events}
        staging = {0: STAGING_BYTES, P2P_LANE: P2P_STAGING_BYTES}.get(index)
        if isinstance(wire, SharedWire):
            limit = self._segment_bytes if index else EXPRESS_MEMORY_BYTES
            staged = {"staging_bytes": staging or BULK_STAGING_BYTES, "lands_all": index > 0}
            self.links[peer].add(SharedLane(wire, limit_bytes=limit, **staged, **given))
        else:
            limit = self._segment_bytes if index else EXPRESS_BYTES
            self.links[peer].add(Lane(wire, limit_bytes=limit, staging_bytes=staging or 0, sealed=sealed, **given))

    async def stop_listening(self) -> None:
        self._formation = None  # whoever has not come need not any more
        try:
            if self._server is not None:
                self._server.cancel()
                await asyncio.wait([self._server])
        finally:
            for listener in self._listeners:
                listener.close()

    def drop(self) -> None:
        """In a forked child: the connections are its parent's, and would outlive it here."""
        for link in self.links.values():
            for lane in link.lanes.values():
                lane.drop()
        for sock in (*self._listeners, *(self._heartbeats.sockets if self._heartbeats is not None else ())):
            drop(sock)


# -- subgroups, which share them


class SubgroupLane:
    """Lane of the ring as a subgroup sees it: the peer has its rank in the subgroup."""

    __slots__ = ("_lane", "index", "peer")

    def __init__(self, lane: LaneLike, peer: int) -> None:
        self._lane, self.peer, self.index = lane, peer, lane.index

    @property
    def scratch(self) -> Scratch:
        return self._lane.scratch

    def resume(self) -> None:
        self._lane.resume()


class Subgroup:
    """One subgroup of this rank: who is in it, and who hears what comes for it."""

    def __init__(
        self, ranks: Sequence[int], dispatcher: Dispatcher, endpoint: Endpoint | None, leave: Callable[[str], None]
    ) -> None:
        """`ranks`: of each rank of the subgroup, its rank in the ring."""
        self.rank_of = {rank: place for place, rank in enumerate(ranks)}
        self.dispatcher, self.leave = dispatcher, leave
        self._endpoint = endpoint
        self._lanes: dict[LaneLike, SubgroupLane] = {}

    def seen(self, lane: LaneLike) -> SubgroupLane:
        shared = self._lanes.get(lane)
        if shared is None:
            shared = self._lanes[lane] = SubgroupLane(lane, self.rank_of[lane.peer])
        return shared

    def events(self, lane: LaneLike) -> Dispatcher | Endpoint:
        return self._endpoint if self._endpoint is not None and lane.index == P2P_LANE else self.dispatcher


class Subgroups:
    """Those of one ring on this rank, by epoch."""

    def __init__(self) -> None:
        self._by_epoch: dict[int, Subgroup] = {}
        self._left: set[int] = set()
        self._early: dict[int, list[tuple[LaneLike, Header, bytes]]] = {}
        self._kept_bytes: dict[int, int] = {}  # by peer

    def add(self, epoch: int, subgroup: Subgroup) -> None:
        """Have it hear what comes for it from now on, and what has come before."""
        self._by_epoch[epoch] = subgroup
        for lane, header, payload in self._early.pop(epoch, []):
            self._kept_bytes[lane.peer] -= _FRAME_BYTES + len(payload)
            try:
                self.arrived(lane, header, memoryview(payload))
            except RemoteProtocolError as error:
                self.lost(lane, error)

    def remove(self, epoch: int) -> None:
        del self._by_epoch[epoch]
        self._left.add(epoch)

    def leave(self, reason: str) -> None:
        """The ring is left, and so is every subgroup."""
        for subgroup in list(self._by_epoch.values()):
            subgroup.leave(reason)

    # -- frames

    def landing(self, lane: LaneLike, header: Header, here: memoryview | None = None) -> memoryview | None:
        subgroup = self._known(lane, header)
        if subgroup is None:
            return lane.scratch.take(header.payload_bytes)
        return subgroup.events(lane).landing(subgroup.seen(lane), header, here)

    def arrived(self, lane: LaneLike, header: Header, payload: memoryview) -> None:
        subgroup = self._known(lane, header)
        if subgroup is not None:
            subgroup.events(lane).arrived(subgroup.seen(lane), header, payload)
        elif header.epoch not in self._left:
            self._keep(lane, header, payload)

    def _known(self, lane: LaneLike, header: Header) -> Subgroup | None:
        subgroup = self._by_epoch.get(header.epoch)
        if subgroup is not None and lane.peer not in subgroup.rank_of:
            raise unknown_epoch(lane.peer, header)
        return subgroup

    def _keep(self, lane: LaneLike, header: Header, payload: memoryview) -> None:
        kept = self._kept_bytes.get(lane.peer, 0) + _FRAME_BYTES + len(payload)
        if lane.index or kept > _KEPT_LIMIT_BYTES:
            raise unknown_epoch(lane.peer, header)
        self._kept_bytes[lane.peer] = kept
        self._early.setdefault(header.epoch, []).append((lane, header, bytes(payload)))

    # -- connections

    def ended(self, lane: LaneLike) -> None:
        for subgroup in self._of(lane.peer):
            subgroup.events(lane).ended(subgroup.seen(lane))

    def lost(self, lane: LaneLike, reason: Exception) -> None:
        for subgroup in self._of(lane.peer):
            subgroup.events(lane).lost(subgroup.seen(lane), reason)

    def on_stream_ended(self, peer: int) -> None:
        for subgroup in self._of(peer):
            subgroup.dispatcher.peer_loss.stream_ended(subgroup.rank_of[peer])

    def on_heartbeat_lane_ended(self, peer: int, reason: Exception) -> None:
        for subgroup in self._of(peer):
            subgroup.dispatcher.peer_loss.heartbeat_lane_ended(subgroup.rank_of[peer], reason)

    def on_silent(self, peers: Sequence[int], seconds: float) -> None:
        for subgroup in list(self._by_epoch.values()):
            silent = [subgroup.rank_of[peer] for peer in peers if peer in subgroup.rank_of]
            if silent:
                subgroup.dispatcher.peer_loss.silent(silent, seconds)

    def _of(self, peer: int) -> list[Subgroup]:
        return [subgroup for subgroup in self._by_epoch.values() if peer in subgroup.rank_of]


# -- forked children


def _drop_all() -> None:
    for connections in list(_all):
        connections.drop()


os.register_at_fork(after_in_child=_drop_all)
