"""A lane: one connection, frames in and frames out, on the event loop that is running.

Rules:
- Receiving never waits for sending. What the kernel does not take at once is queued, and reading goes on.
- A payload belongs to the lane until its bytes have left: `sent` of its owner is called then. A frame without an owner
  is copied if it has to wait, so its payload is free as soon as `send` returns.
- `forget` takes back what has not left of a collective that is over. A frame that has begun to leave must leave whole,
  so its rest is copied.
- A lane ends with END, in both directions: `finish` sends it behind all that is queued, and with the one of the peer
  the lane closes. Any other end is a loss, however quiet it is.

The lane works on the bare socket instead of a stream transport for that reason: a transport takes the bytes and does
not give them back, nor tell when they have left. See docs/decisions/0002-bare-sockets.md.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import END, HEADER_BYTES, FrameKind, Header, framed, seal
from ringwide.protocol.frame_reader import FrameReader, SharedPayloads
from ringwide.transport.buffers import PayloadOwner, QueuedFrame, Scratch, after
from ringwide.transport.sockets import (
    Transport,
    acknowledge_quickly,
    drop,
    granted_bytes,
    reset_when_closed,
    transport_of,
    unacknowledged_bytes,
    wake_at,
)
from ringwide.transport.wire import CutOff, Wire

logger = logging.getLogger("ringwide.transport")

READS_PER_WAKE = 8
"""Then other lanes get their turn."""
WAKE_BYTES, LEAST_WAKE_BYTES = 256 * 1024, 64 * 1024
"""Of a large payload the kernel collects this much before it wakes us, instead of waking us for every packet."""
_END_FRAME = framed(FrameKind.END, b"")


class Events(Protocol):
    """Who is told what happens on a lane."""

    def landing(self, lane: "Lane", header: Header) -> memoryview | None: ...

    def arrived(self, lane: "Lane", header: Header, payload: memoryview) -> None: ...

    def ended(self, lane: "Lane") -> None:
        """All that the peer sends on this lane has come."""

    def lost(self, lane: "Lane", reason: Exception) -> None: ...


class Lane:
    """One connection to `peer`. Lane 0 of a link is the express lane, the others carry bulk."""

    def __init__(
        self,
        wire: Wire,
        *,
        peer: int,
        index: int,
        events: Events,
        limit_bytes: int,
        staging_bytes: int = HEADER_BYTES,
        sealed: bool = False,
        shared: SharedPayloads | None = None,
        lands_all: bool = False,
    ) -> None:
        self.peer, self.index, self.sealed = peer, index, sealed
        self.bytes_sent = self.bytes_received = 0
        self._next = 0  # the number of the frame that leaves next
        self.closed = False
        self.ended = False  # by the peer: nothing more comes
        self._finishing = False  # by us: nothing more is sent
        self._mute = False  # closed or finishing
        self.on_end: Callable[[], None] = _nobody  # told when it has ended or closed
        self.socket = wire.socket
        self.transport: Transport = transport_of(self.socket)
        self._tcp = self.transport == "tcp"
        self._wire = wire
        self._attentive = self._tcp or not wire.plain
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._queue: deque[QueuedFrame] = deque()
        self._writing = False
        self.scratch = Scratch()
        self._reader = FrameReader(
            landing=self._landing,
            arrived=self._arrived,
            limit_bytes=limit_bytes,
            staging_bytes=staging_bytes,
            sealed=sealed,
            numbered=sealed,
            shared=shared,
            lands_all=lands_all,
        )
        self._loop.add_reader(self.socket, self._readable)
        self._reading, self._looking = True, False
        self._wakes_at = 1  # bytes
        self._wake_bytes = min(WAKE_BYTES, granted_bytes(self.socket)[1] // 4)
        self._error: OSError | None = None  # it has failed, and what came before is still to be read
        if wire.more:
            self._look_again()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.queued} queued"
        return f"<Lane {self.index} to rank {self.peer} by {self.transport}: {state}>"

    # -- sending

    def send(
        self, header: bytes, payload: memoryview, *, owner: PayloadOwner | None = None, collective: int = 0
    ) -> None:
        """Send a frame now, or as soon as the kernel takes it."""
        if self._mute:
            return
        if self._queue:
            rest = self._own_or_copy([header, payload], owner)
            self._queue.append(QueuedFrame(rest, owner, collective, False))
            return
        leaving = seal(header, payload, self._next) if self.sealed else header
        try:
            count = self._wire.send((leaving, payload))
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as error:
            # Not here: the caller is in the middle of something. Nor with its frames, which refer to all it works with.
            self._loop.call_soon(self._fail_sending, error.with_traceback(None))
            return
        self.bytes_sent += count
        self._next += count > 0
        if count == len(header) + len(payload):
            if self._wire.unsent:
                self._watch_writable(True)
            if owner is not None:
                owner.sent()
            return
        rest = self._own_or_copy(after([leaving, payload] if count else [header, payload], count), owner)
        self._queue.append(QueuedFrame(rest, owner, collective, count > 0))
        self._watch_writable(True)

    @staticmethod
    def _own_or_copy(views: list[memoryview | bytes], owner: PayloadOwner | None) -> list[memoryview | bytes]:
        return views if owner is not None else [bytes(view) for view in views]

    def _leaving(self, parcel: QueuedFrame) -> list[memoryview | bytes]:
        """What the kernel gets of a parcel whose turn has come. It is sealed only now: until then it may be forgotten,
        and would leave a gap in the numbers."""
        if not self.sealed:
            return parcel.views
        header, payload = parcel.views
        return [seal(header, payload, self._next), payload]

    def reserve(self, nbytes: int) -> memoryview | None:
        """Where to write a payload that leaves next, if this lane has such a place. `send_reserved` follows at once."""
        return None

    def send_reserved(self, header: bytes) -> None:
        raise NotImplementedError

    def forget(self, collective: int) -> None:
        """Take back what has not left of this collective, and let what still comes of it land elsewhere."""
        self._reader.divert(collective)
        kept: deque[QueuedFrame] = deque()
        for parcel in self._queue:
            if parcel.owner is not None and parcel.collective == collective:
                if not parcel.started:
                    continue
                parcel.views, parcel.owner = [b"".join(parcel.views)], None
            kept.append(parcel)
        self._queue = kept

    @property
    def queued(self) -> int:
        """What the kernel has not got yet: frames, and whatever the wire holds."""
        return 0 if self.closed else len(self._queue) + self._wire.unsent

    def _writable(self) -> None:
        try:
            self._write()
        except Exception as error:
            self._end_with(error)

    def _write(self) -> None:
        queue = self._queue
        while queue:
            parcel = queue[0]
            views = parcel.views if parcel.started else self._leaving(parcel)
            if not views:
                self._watch_writable(False)  # it waits for something else
                return
            try:
                count = self._wire.send(views)
            except (BlockingIOError, InterruptedError):
                self._watch_writable(True)
                return
            except OSError as error:
                self._fail_sending(error)
                return
            self.bytes_sent += count
            self._next += not parcel.started
            parcel.started = True
            parcel.views = after(views, count)
            if parcel.views:
                self._watch_writable(True)
                return
            queue.popleft()
            if parcel.owner is not None:
                parcel.owner.sent()
            queue = self._queue  # `sent` may have ended a collective, and that may have replaced the queue
        if self.closed:
            return  # by `sent`
        try:
            self._wire.flush()
        except OSError as error:
            self._fail_sending(error)
            return
        self._watch_writable(self._wire.unsent)
        if self._finishing:
            self._close_if_over()

    def _watch_writable(self, wanted: bool) -> None:
        if wanted and not self._writing:
            self._loop.add_writer(self.socket, self._writable)
        elif self._writing and not wanted:
            self._loop.remove_writer(self.socket)
        self._writing = wanted

    # -- receiving

    @property
    def same_host(self) -> bool:
        """Does the peer run on this machine?"""
        try:
            return not self._tcp or bool(self.socket.getpeername()[0] == self.socket.getsockname()[0])
        except OSError:  # it is gone already
            return False

    def look(self) -> bool:
        """Read what has come, without having been woken for it. Has anything?"""
        if not self._reading:
            return False
        if self._attentive:
            before = self.bytes_received
            self._readable()
            return self.bytes_received > before
        try:
            return self._receive(self._reader.room()) > 0
        except Exception as error:
            self._end_with(error)
            return True

    def _readable(self) -> None:
        try:
            self._read()
        except Exception as error:
            self._end_with(error)
        if self._attentive:
            self._attend()

    def _attend(self) -> None:
        """What is to be done after reading, on wires that need it."""
        if self._wire.plain:
            self._choose_when_to_wake()
        elif self._wire.unsent and not self.closed:  # reading, too, can make a wire answer
            self._watch_writable(True)

    def _look_again(self) -> None:
        """There is more to read, and the kernel will not say so."""
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look_now)

    def _look_now(self) -> None:
        self._looking = False
        if self._reading:
            self._readable()

    def _end_with(self, error: Exception) -> None:
        """Whatever fails in a callback ends the lane: an event loop would only print it, and the caller wait on."""
        if not isinstance(error, RemoteProtocolError):
            logger.error("lane=%d peer=%d: a frame could not be handled", self.index, self.peer, exc_info=error)
        self._lose(error)

    def _has_failed(self) -> bool:
        """uvloop wakes us only once for a reset, also when it comes together with data: read on, to the end."""
        if self._error is None and not self.closed:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._error = OSError(code, os.strerror(code)) if code else None
        return self._error is not None

    def _choose_when_to_wake(self) -> None:
        """Never for more than is certain to come, or it would never come."""
        missing = self._reader.missing
        nbytes = min(missing, self._wake_bytes) if missing >= LEAST_WAKE_BYTES else 1
        if nbytes != self._wakes_at and not self.closed:
            wake_at(self.socket, nbytes)
            self._wakes_at = nbytes

    def _read(self) -> None:
        for _ in range(READS_PER_WAKE):
            if self.closed:
                return
            room = self._reader.room()
            if not room:
                self._watch_readable(False)
                return
            count = self._receive(room)
            if not count:
                return
            if self._wire.plain and count < sum(map(len, room)) and not self._has_failed():
                return  # the kernel has no more
        if self._wire.more or self._has_failed():
            self._look_again()

    def _receive(self, room: list[memoryview]) -> int:
        """How many bytes have come; 0: none now, or it is over."""
        try:
            count = self._wire.receive(room)
        except (BlockingIOError, InterruptedError):
            return 0
        except (OSError, EOFError) as error:
            self._lose(error)
            return 0
        if count == 0:
            self._lose(self._error or self._end_of_file())
            return 0
        self.bytes_received += count
        self._reader.received(count)
        return count

    def _end_of_file(self) -> EOFError:
        if self._reader.inside_a_frame:
            return CutOff("it closed the connection in the middle of a frame")
        return EOFError("it closed the connection")

    def resume(self) -> None:
        """A payload had no place to land; perhaps it has one now."""
        if self.closed or not self._reader.blocked:
            return
        try:
            self._reader.retry()
        except Exception as error:
            self._end_with(error)
        if self._wire.plain and self._tcp:
            self._choose_when_to_wake()
        self._watch_readable(not (self.closed or self._reader.blocked))
        if self._reading and self._wire.more:
            self._look_again()

    def _watch_readable(self, wanted: bool) -> None:
        if wanted and not self._reading:
            self._loop.add_reader(self.socket, self._readable)
        elif self._reading and not wanted:
            self._loop.remove_reader(self.socket)
        self._reading = wanted

    def _landing(self, header: Header) -> memoryview | None:
        return self._events.landing(self, header)

    def _arrived(self, header: Header, payload: memoryview) -> None:
        if self.ended or header.kind == END:
            self._hear_end()
            return
        if self.index and self._tcp:
            acknowledge_quickly(self.socket)
        self._events.arrived(self, header, payload)

    # -- the end

    def finish(self) -> None:
        """Say END behind all that is queued, and nothing after it. The lane closes when the peer has said it too."""
        if not self._mute:
            self.send(_END_FRAME, memoryview(b""))
            self._finishing = self._mute = True
            self._close_if_over()

    def _hear_end(self) -> None:
        if self.ended:
            raise RemoteProtocolError("a frame came after the END of its lane")
        self.ended = True
        self._events.ended(self)
        self._close_if_over()
        self.on_end()

    def _close_if_over(self) -> None:
        if self.ended and self._finishing and not self.queued:
            self.close()

    @property
    def delivered(self) -> bool:
        """The peer's kernel has all that was sent here, up to END. What becomes of this end changes nothing there."""
        return self._finishing and not self.queued and not unacknowledged_bytes(self.socket)

    @property
    def moved(self) -> int:
        """Bytes that have got to the peer's kernel or come from there."""
        return self.bytes_sent + self.bytes_received - unacknowledged_bytes(self.socket)

    def _fail_sending(self, error: OSError) -> None:
        """The peer is gone, but its last words are perhaps still to be read."""
        seen = -1
        while self._reading and self.bytes_received > seen:
            seen = self.bytes_received
            self._readable()
        self._lose(error)

    def _lose(self, reason: Exception) -> None:
        if not self.closed:
            self.close()
            if not self.ended or not isinstance(reason, EOFError | OSError):  # after END there is nothing to lose
                self._events.lost(self, reason)

    def close(self) -> None:
        if self.closed:
            return
        self._watch_readable(False)
        self._watch_writable(False)
        self.closed = self._mute = True
        self._queue.clear()
        self._wire.close()
        self.on_end()

    def reset(self) -> None:
        """Close, and let the peer know that this is not the end it should have been."""
        if self._tcp and not self.closed:
            reset_when_closed(self.socket)
        self.close()

    def drop(self) -> None:
        """In a forked child: let go of what is the parent's, which uses it on."""
        drop(self.socket)


def _nobody() -> None: ...
