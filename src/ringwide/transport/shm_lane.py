"""Shared-memory lane: large payloads lie in memory that both ends share. Headers and small payloads use the socket.

To the rooms above it is a lane like any other. A payload has left when it is copied into a slot of our arena; the peer
reads it there. When no slot is free, bulk frames wait in the queue, as they do when the kernel takes no more.

Rules:
- On an express lane nothing waits for a slot: without a free one, the payload goes through the socket. A small
  collective may be over here before its last frames have left. Its caller may then compute for long or leave the ring,
  and nobody looks after slots meanwhile; but bytes that the kernel has are delivered all the same.
- A slot is released at the latest when `arrived` returns: nothing that waits for another rank may hold one. Ranks that
  held slots while waiting for slots would wait for each other round the whole ring.
- A frame whose payload is in a slot can no longer be forgotten, or the slot would be lost. It is sent.
"""

from socket import socket as Socket
from typing import Any

from ringwide.protocol.frame import HEADER_BYTES, REFERENCE, SPILLED, Header
from ringwide.transport.lane import Lane
from ringwide.transport.lane_buffers import PayloadOwner, QueuedFrame
from ringwide.transport.shm_arena import ArenaReader, ArenaWriter
from ringwide.transport.wire import PlainWire

INLINE_BYTES = 4 * 1024
"""Up to this size the socket is as fast."""
_SPILLED = REFERENCE.pack(SPILLED)


class SharedWire(PlainWire):
    """A Unix-domain socket, and an arena for each direction."""

    __slots__ = ("incoming", "outgoing")

    def __init__(self, sock: Socket, outgoing: ArenaWriter, incoming: ArenaReader) -> None:
        super().__init__(sock)
        self.outgoing, self.incoming = outgoing, incoming

    def close(self) -> None:
        super().close()
        self.outgoing.close()
        self.incoming.close()


class SharedLane(Lane):
    """One connection to a rank on this machine, with an arena for each direction."""

    def __init__(self, wire: SharedWire, *, limit_bytes: int, **plain: Any) -> None:
        self._outgoing, self._incoming = wire.outgoing, wire.incoming
        self._holds_up_to = min(wire.outgoing.shape.slot_bytes, limit_bytes)
        self._awaiting_slot = False  # the event loop watches for a released slot
        self._reserved = (0, 0)  # slot, bytes
        super().__init__(wire, shared=self, limit_bytes=limit_bytes, **plain)
        self.transport = "memory"
        self._spills = self.index == 0

    def holds(self, payload_bytes: int) -> bool:
        return INLINE_BYTES < payload_bytes <= self._holds_up_to

    # -- sending

    def send(self, header: bytes, payload: memoryview, *, owner: PayloadOwner | None = None, key: int = 0) -> None:
        if self._send_closed or not self.holds(len(payload)):
            super().send(header, payload, owner=owner, key=key)
            return
        room = self.reserve(len(payload))
        if room is None:
            if not self._queue and self._spills:
                super().send(header + _SPILLED, payload, owner=owner, key=key)
                return
            if not self._queue:
                self._await_slot(True)
            self._queue.append(QueuedFrame(self._own_or_copy([header, payload], owner), owner, key, False))
            return
        room[:] = payload
        self.send_reserved(header)
        if owner is not None:
            owner.sent()

    def reserve(self, nbytes: int) -> memoryview | None:
        if self._send_closed or self._queue or not self.holds(nbytes) or (slot := self._outgoing.take()) is None:
            return None
        self._reserved = (slot, nbytes)
        return self._outgoing.view(slot, nbytes)

    def send_reserved(self, header: bytes) -> None:
        slot, nbytes = self._reserved
        self.bytes_sent += nbytes - REFERENCE.size
        super().send(header, memoryview(REFERENCE.pack(slot)))

    def _leaving(self, frame: QueuedFrame) -> list[memoryview | bytes]:
        header, payload = frame.views
        if not self.holds(len(payload)):
            return frame.views
        header = bytes(header[:HEADER_BYTES])  # without the SPILLED mark that it may have from before
        slot = self._outgoing.take()
        if slot is None and self._spills:
            return [header + _SPILLED, payload]
        if slot is None:
            self._await_slot(True)
            return []
        self._outgoing.view(slot, len(payload))[:] = payload
        self.bytes_sent += len(payload) - REFERENCE.size
        frame.views, frame.started = [header, REFERENCE.pack(slot)], True
        return frame.views

    def _await_slot(self, wanted: bool) -> None:
        if wanted and not self._awaiting_slot:
            self._loop.add_reader(self._outgoing.released, self._slot_released)
        elif self._awaiting_slot and not wanted:
            self._loop.remove_reader(self._outgoing.released)
        self._awaiting_slot = wanted

    def _slot_released(self) -> None:
        self._await_slot(False)
        self._writable()

    # -- receiving

    def arrived(self, header: Header, slot: int) -> bool:
        """Take a payload that lies in a slot: it is read there, or copied to its destination."""
        if self.ended:
            self._end_received()
        payload = self._incoming.view(slot, header.payload_bytes)
        destination = self._events.landing(self, header, payload)
        if destination is None:
            return False
        self.bytes_received += header.payload_bytes - REFERENCE.size
        if destination is not payload:
            destination[:] = payload
            self._incoming.release(slot)
            self._events.arrived(self, header, destination)
        else:
            self._events.arrived(self, header, destination)
            self._release_after(slot)
        return True

    def _release_after(self, slot: int) -> None:
        if not self.closed:  # `arrived` may have closed it
            self._incoming.release(slot)

    def close(self) -> None:
        if not self.closed:
            self._await_slot(False)
        super().close()

    def drop(self) -> None:
        super().drop()
        self._outgoing.close()
        self._incoming.close()
