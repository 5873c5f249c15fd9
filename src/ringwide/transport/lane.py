"""A lane: one connection that carries frames both ways, on the running event loop.

Rules:
- Receiving never waits for sending. Frames that the kernel does not take are queued (`send_half.py`), and reading goes
  on.
- A lane ends with END in both directions. `finish` sends it behind all that is queued, and the lane closes when the
  peer's END has come too. Any other end is a loss, however quiet it is.
"""

import logging
import os
import socket
from collections.abc import Callable
from typing import Protocol

from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import END, HEADER_BYTES, FrameKind, FrameReader, Header, SharedPayloads, framed
from ringwide.transport.lane_buffers import Scratch
from ringwide.transport.send_half import SendHalf
from ringwide.transport.sockets import (
    Transport,
    acknowledge_quickly,
    drop,
    granted_bytes,
    reset_when_closed,
    set_low_water,
    transport_of,
    unacknowledged_bytes,
)
from ringwide.transport.wire import CutOff, Wire

logger = logging.getLogger("ringwide.transport")

READS_PER_WAKE = 8
"""After so many reads the other lanes get their turn."""
LOW_WATER_BYTES, LEAST_LOW_WATER_BYTES = 256 * 1024, 64 * 1024
"""The kernel collects this much of a large payload before it wakes us, instead of waking us for every packet."""
_END_FRAME = framed(FrameKind.END, b"")


class Events(Protocol):
    """Receiver of what happens on a lane."""

    def landing(self, lane: "Lane", header: Header, here: memoryview | None = None, /) -> memoryview | None:
        """Memory for the payload of a large frame. None: not yet, `resume` will ask again.

        `here`: where it lies already, in memory that is shared with the peer. Returned, it is read there.
        """

    def arrived(self, lane: "Lane", header: Header, payload: memoryview) -> None:
        """A frame is here, complete and checked."""

    def ended(self, lane: "Lane") -> None:
        """The peer's END has come: it sends nothing more on this lane."""

    def lost(self, lane: "Lane", reason: Exception) -> None:
        """The connection broke, or what came on it was wrong."""


class Lane(SendHalf):
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
        super().__init__(wire, sealed=sealed)
        self.peer, self.index = peer, index
        self.bytes_received = 0
        self.ended = False  # the peer's END has come
        self.on_end: Callable[[], None] = _ignore  # called when the lane has ended or closed
        self.transport: Transport = transport_of(self.socket)
        self._tcp = self.transport == "tcp"
        self._adjusts = self._tcp or not wire.plain  # is there something to do after each read?
        self._receive_into = self.socket.recv_into if wire.plain else None  # a look should cost a system call, no more
        self._events = events
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
        self._reading = True  # the event loop watches for bytes
        self._read_scheduled = False
        self._low_water = 1  # bytes
        self._most_low_water = min(LOW_WATER_BYTES, granted_bytes(self.socket)[1] // 4)
        self._error: OSError | None = None  # the connection has failed, but what came before is still to be read
        if wire.more:
            self._read_soon()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.queued} queued"
        return f"<Lane {self.index} to rank {self.peer} by {self.transport}: {state}>"

    @property
    def same_host(self) -> bool:
        """Whether the peer runs on this machine."""
        try:
            return not self._tcp or bool(self.socket.getpeername()[0] == self.socket.getsockname()[0])
        except OSError:  # it is gone already
            return False

    def forget(self, key: int) -> None:
        """Take back the queued frames of a collective, and divert its payload that is just arriving."""
        self._reader.divert(key)
        super().forget(key)

    # -- receiving

    def poll(self) -> bool:
        """Read what has come without waiting to be woken. True: something had come."""
        if not self._reading:
            return False
        if self._adjusts:
            before = self.bytes_received
            self._readable()
            return self.bytes_received > before
        try:
            return self._receive(self._reader.room()) > 0
        except Exception as error:
            self._fail(error)
            return True

    def _readable(self) -> None:
        try:
            self._read()
        except Exception as error:
            self._fail(error)
        if self._adjusts:
            self._adjust()

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
            self._read_soon()

    def _receive(self, room: list[memoryview]) -> int:
        """Receive once, and return the number of bytes. 0: none now, or the lane is over."""
        try:
            if self._receive_into is not None and len(room) == 1:
                count = self._receive_into(room[0])
            else:
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

    def _adjust(self) -> None:
        """Follow up a read, on wires that need it."""
        if self._wire.plain:
            self._set_low_water()
        elif self._wire.unsent and not self.closed:  # reading can make a wire answer
            self._watch_writable(True)

    def _read_soon(self) -> None:
        """There is more to read, but the kernel will not wake us for it."""
        if not self._read_scheduled:
            self._read_scheduled = True
            self._loop.call_soon(self._read_now)

    def _read_now(self) -> None:
        self._read_scheduled = False
        if self._reading:
            self._readable()

    def _has_failed(self) -> bool:
        """uvloop wakes us only once for a reset, even if data came with it. So we read on until the end."""
        if self._error is None and not self.closed:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._error = OSError(code, os.strerror(code)) if code else None
        return self._error is not None

    def _set_low_water(self) -> None:
        """Wake us for more bytes at once, but never for more than are certain to come."""
        missing = self._reader.missing
        nbytes = min(missing, self._most_low_water) if missing >= LEAST_LOW_WATER_BYTES else 1
        if nbytes != self._low_water and not self.closed:
            set_low_water(self.socket, nbytes)
            self._low_water = nbytes

    def _landing(self, header: Header) -> memoryview | None:
        return self._events.landing(self, header)

    def _arrived(self, header: Header, payload: memoryview) -> None:
        if self.ended or header.kind == END:
            self._end_received()
            return
        if self.index and self._tcp:
            acknowledge_quickly(self.socket)
        self._events.arrived(self, header, payload)

    def _end_of_file(self) -> EOFError:
        if self._reader.inside_a_frame:
            return CutOff("it closed the connection in the middle of a frame")
        return EOFError("it closed the connection")

    def resume(self) -> None:
        """Ask again for memory for a payload that had none before."""
        if self.closed or not self._reader.blocked:
            return
        try:
            self._reader.retry()
        except Exception as error:
            self._fail(error)
        if self._wire.plain and self._tcp:
            self._set_low_water()
        self._watch_readable(not (self.closed or self._reader.blocked))
        if self._reading and self._wire.more:
            self._read_soon()

    def _watch_readable(self, wanted: bool) -> None:
        if wanted and not self._reading:
            self._loop.add_reader(self.socket, self._readable)
        elif self._reading and not wanted:
            self._loop.remove_reader(self.socket)
        self._reading = wanted

    # -- the end

    def finish(self) -> None:
        """Send END behind all that is queued. The lane closes when the peer's END has come too."""
        if not self._send_closed:
            self.send(_END_FRAME, memoryview(b""))
            self._finishing = self._send_closed = True
            self._close_if_over()

    def _end_received(self) -> None:
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
        """Whether the peer's kernel has everything up to our END, so that it will be read whatever happens here."""
        return self._finishing and not self.queued and not unacknowledged_bytes(self.socket)

    @property
    def moved(self) -> int:
        """Bytes that have reached the peer's kernel or come from it."""
        return self.bytes_sent + self.bytes_received - unacknowledged_bytes(self.socket)

    def _fail(self, error: Exception) -> None:
        """End the lane after an exception in a callback: the event loop would only print it, and the caller hang."""
        if not isinstance(error, RemoteProtocolError):
            logger.error("lane=%d peer=%d: a frame could not be handled", self.index, self.peer, exc_info=error)
        self._lose(error)

    def _fail_sending(self, error: OSError) -> None:
        """The peer is gone, but its last frames may still be waiting to be read."""
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
        self.closed = self._send_closed = True
        self._queue.clear()
        self._wire.close()
        self.on_end()

    def reset(self) -> None:
        """Close in a way that the peer cannot mistake for an orderly end."""
        if self._tcp and not self.closed:
            reset_when_closed(self.socket)
        self.close()

    def drop(self) -> None:
        """In a forked child: close our copies; the parent keeps using its own."""
        drop(self.socket)


def _ignore() -> None: ...
