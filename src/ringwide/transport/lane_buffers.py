"""Buffers of a lane: frames queued to leave, scratch for what lands, ciphertext that the kernel has not taken yet."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from socket import socket as Socket
from typing import Protocol

from ringwide.transport.wire import Views


class PayloadOwner(Protocol):
    """Owner of a payload that is being sent."""

    def sent(self) -> None:
        """The payload has left; its memory may be used again."""


class QueuedFrame:
    """A frame that waits to be sent: the views still to send, and the owner of its payload."""

    __slots__ = ("key", "owner", "started", "views")

    def __init__(self, views: list[memoryview | bytes], owner: PayloadOwner | None, key: int, started: bool) -> None:
        self.views, self.owner, self.key, self.started = views, owner, key, started


def remaining(views: list[memoryview | bytes], count: int) -> list[memoryview | bytes]:
    """The buffers without their first `count` bytes."""
    for number, view in enumerate(views):
        if count < len(view):
            return [memoryview(view)[count:], *views[number + 1 :]]
        count -= len(view)
    return []


class Scratch:
    """Memory of a lane in which the next payload lands before it is added to something.

    It is nearly always the same memory, so it stays in the cache.
    """

    def __init__(self) -> None:
        self._current = memoryview(bytearray())
        self._spare: list[memoryview] = []

    def take(self, nbytes: int) -> memoryview:
        """Memory for the next payload. The one after overwrites it, unless `lend` is called."""
        if len(self._current) < nbytes:
            self._current = memoryview(bytearray(nbytes))
        return self._current[:nbytes]

    def lend(self) -> memoryview:
        """Hand out the current memory, because its payload is still needed. The next payload gets other memory."""
        lent = self._current
        self._current = self._spare.pop() if self._spare else memoryview(bytearray())
        return lent

    def give_back(self, lent: memoryview) -> None:
        """Take lent memory back for reuse: fresh memory costs a page fault every 4 KiB."""
        self._spare.append(lent)


PIECE_BYTES = 256 * 1024
"""So much is encrypted and sent at once: the peer decrypts the first piece while we encrypt the next."""
SMALL_BYTES = 16 * 1024
"""Header and payload of a frame up to this size are joined, instead of being encrypted as two pieces."""

Encrypt = Callable[[memoryview | bytes], memoryview | bytes]


class CiphertextQueue:
    """Ciphertext that the kernel has not taken yet. `send` encrypts piece by piece, as long as the kernel takes it.

    It never holds more than one large piece, so `encrypt` may write all large pieces into the same memory.
    """

    __slots__ = ("_socket", "_waiting")

    def __init__(self, sock: Socket) -> None:
        self._socket = sock
        self._waiting: deque[memoryview] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, ciphertext: memoryview | bytes) -> None:
        self._waiting.append(memoryview(ciphertext))

    def send(self, views: Views, encrypt: Encrypt) -> int:
        """Number of plaintext bytes taken. `BlockingIOError`: none, the kernel must first take what waits."""
        self.flush()
        if self._waiting:
            raise BlockingIOError
        taken = 0
        for piece in _cut(views):
            self.put(encrypt(piece))
            taken += len(piece)
            if len(piece) > SMALL_BYTES:
                self.flush()
                if self._waiting:
                    return taken
        self.flush()
        return taken

    def flush(self) -> None:
        """Send what waits, as far as the kernel takes it."""
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


def _cut(views: Views) -> Iterator[memoryview | bytes]:
    if sum(map(len, views)) <= SMALL_BYTES:
        return iter((b"".join(views),))
    return chain.from_iterable(
        (memoryview(view)[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES)) for view in views
    )
