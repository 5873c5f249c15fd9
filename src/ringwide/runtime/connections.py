"""Connections of one rank: opened together when the ring forms, closed together when it is left."""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
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
from ringwide.health.heartbeats import Heartbeats
from ringwide.protocol.handshake import Setting
from ringwide.protocol.heartbeat import HEARTBEAT_LANE
from ringwide.protocol.p2p import P2P_LANE
from ringwide.transport.lane import Events, Lane
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
        self._formation: RingFormation | None = None
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
        self._formation = None

    def fail(self, error: Exception) -> None:
        """A rank that had come is gone again: `open` raises this instead of waiting on."""
        if self._formation is not None:
            self._formation.fail(error)

    def ranks_on_this_host(self) -> int:
        return 1 + sum(link.lanes[0].same_host for link in self.links.values())

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

    def all_by_memory(self) -> bool:
        """Do all express lanes share memory?"""
        return all(link.lanes[0].transport == "memory" for link in self.links.values())

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


def _drop_all() -> None:
    for connections in list(_all):
        connections.drop()


os.register_at_fork(after_in_child=_drop_all)
