"""Bytes that a wire has made and the kernel has not taken yet."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from socket import socket as Socket

from ringwide.transport.wire import Views

PIECE_BYTES = 256 * 1024
"""So much is enclosed and handed over at once: the peer opens the first piece while we enclose the next."""
SMALL_BYTES = 16 * 1024
"""A frame up to this size is copied together rather than enclosed in two pieces."""

Enclose = Callable[[memoryview | bytes], memoryview | bytes]


class Outbox:
    """Encloses what is to be sent, piece by piece, for as long as the kernel takes it.

    There is never more than one large piece in it, so that `enclose` may make all of them in the same memory.
    """

    __slots__ = ("_socket", "_waiting")

    def __init__(self, sock: Socket) -> None:
        self._socket = sock
        self._waiting: deque[memoryview] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, enclosed: memoryview | bytes) -> None:
        self._waiting.append(memoryview(enclosed))

    def send(self, views: Views, enclose: Enclose) -> int:
        """How many bytes were taken of these. `BlockingIOError`: none, the kernel must first take what waits."""
        self.flush()
        if self._waiting:
            raise BlockingIOError
        taken = 0
        for piece in _pieces(views):
            self.put(enclose(piece))
            taken += len(piece)
            if len(piece) > SMALL_BYTES:
                self.flush()
                if self._waiting:
                    return taken
        self.flush()
        return taken

    def flush(self) -> None:
        """Hand over what waits, as far as the kernel takes it."""
        waiting = self._waiting
        while waiting:
            try:
                count = self._socket.send(waiting[0]) if len(waiting) == 1 else self._socket.sendmsg(waiting)
            except (BlockingIOError, InterruptedError):
                return
            while waiting and count >= len(waiting[0]):
                count -= len(waiting.popleft())
            if count:
                waiting[0] = waiting[0][count:]


def _pieces(views: Views) -> Iterator[memoryview | bytes]:
    if sum(map(len, views)) <= SMALL_BYTES:
        return iter((b"".join(views),))
    return chain.from_iterable(
        (memoryview(view)[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES)) for view in views
    )
