"""The sending half of a lane: frames for the kernel, and the queue of those that it does not take at once.

Rules:
- A payload belongs to the lane until its bytes have left; then `sent` of its owner is called. A frame without an owner
  is copied if it has to wait, so its payload is free as soon as `send` returns.
- `forget` takes back the frames of a finished collective that have not left. A frame that has begun to leave must leave
  whole, so its rest is copied.
- A frame is sealed when its turn comes, not when it is queued: a forgotten frame must leave no gap in the numbers.

The lane works on the bare socket instead of a stream transport for that reason: a transport takes the bytes and does
not give them back, nor tell when they have left. See docs/decisions/0002-bare-sockets.md.
"""

import asyncio
from collections import deque

from ringwide.protocol.frame import seal
from ringwide.transport.lane_buffers import PayloadOwner, QueuedFrame, remaining
from ringwide.transport.wire import Wire


class SendHalf:
    """Sends frames on `wire`. The lane adds the receiving half and the end of the connection."""

    def __init__(self, wire: Wire, *, sealed: bool) -> None:
        self.sealed = sealed
        self.bytes_sent = 0
        self.closed = False
        self._finishing = False  # our END is queued or sent
        self._send_closed = False  # closed or finishing: nothing more is sent
        self.socket = wire.socket
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._queue: deque[QueuedFrame] = deque()
        self._next = 0  # the number of the frame that leaves next
        self._writing = False  # the event loop watches for room in the kernel

    def send(self, header: bytes, payload: memoryview, *, owner: PayloadOwner | None = None, key: int = 0) -> None:
        """Send a frame now, or as soon as the kernel takes it. `key` is for `forget` (see `Header.key`)."""
        if self._send_closed:
            return
        if self._queue:
            rest = self._own_or_copy([header, payload], owner)
            self._queue.append(QueuedFrame(rest, owner, key, False))
            return
        leaving = seal(header, payload, self._next) if self.sealed else header
        try:
            count = self._wire.send((leaving, payload))
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as error:
            # Later, as the caller is in the middle of something; and without its traceback, which keeps the caller's
            # objects alive.
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
        rest = self._own_or_copy(remaining([leaving, payload] if count else [header, payload], count), owner)
        self._queue.append(QueuedFrame(rest, owner, key, count > 0))
        self._watch_writable(True)

    @staticmethod
    def _own_or_copy(views: list[memoryview | bytes], owner: PayloadOwner | None) -> list[memoryview | bytes]:
        return views if owner is not None else [bytes(view) for view in views]

    def reserve(self, nbytes: int) -> memoryview | None:
        """Memory to write the next payload into, if this lane has such. `send_reserved` follows at once."""
        return None

    def send_reserved(self, header: bytes) -> None:
        """Send the payload that was written into the reserved memory."""
        raise NotImplementedError

    @property
    def queued(self) -> int:
        """Number of frames that the kernel has not taken yet, plus one if the wire itself holds bytes back."""
        return 0 if self.closed else len(self._queue) + self._wire.unsent

    def forget(self, key: int) -> None:
        """Take back the queued frames of the collective with this key (`Header.key`)."""
        kept: deque[QueuedFrame] = deque()
        for frame in self._queue:
            if frame.owner is not None and frame.key == key:
                if not frame.started:
                    continue
                frame.views, frame.owner = [b"".join(frame.views)], None
            kept.append(frame)
        self._queue = kept

    # -- when the kernel takes more

    def _writable(self) -> None:
        try:
            self._write()
        except Exception as error:
            self._fail(error)

    def _write(self) -> None:
        queue = self._queue
        while queue:
            frame = queue[0]
            views = frame.views if frame.started else self._leaving(frame)
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
            self._next += not frame.started
            frame.started = True
            frame.views = remaining(views, count)
            if frame.views:
                self._watch_writable(True)
                return
            queue.popleft()
            if frame.owner is not None:
                frame.owner.sent()
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

    def _leaving(self, frame: QueuedFrame) -> list[memoryview | bytes]:
        """The bytes of a queued frame whose turn has come. Empty: it must wait for something other than the kernel."""
        if not self.sealed:
            return frame.views
        header, payload = frame.views
        return [seal(header, payload, self._next), payload]

    def _watch_writable(self, wanted: bool) -> None:
        if wanted and not self._writing:
            self._loop.add_writer(self.socket, self._writable)
        elif self._writing and not wanted:
            self._loop.remove_writer(self.socket)
        self._writing = wanted

    # -- what the lane does about it

    def _fail(self, error: Exception) -> None:
        """End the lane after an exception in a callback."""
        raise NotImplementedError

    def _fail_sending(self, error: OSError) -> None:
        """The connection broke while sending."""
        raise NotImplementedError

    def _close_if_over(self) -> None:
        """Everything queued has left, END included."""
        raise NotImplementedError
