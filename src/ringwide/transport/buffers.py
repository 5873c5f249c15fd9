"""Buffers of a lane: frames queued to leave, scratch for what lands, ciphertext that the kernel has not taken yet."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from socket import socket as Socket
from typing import Protocol

from ringwide.transport.wire import Views


class PayloadOwner(Protocol):
    """Whose payload it is."""

    def sent(self) -> None: ...


class QueuedFrame:
    """One queued frame: what is still to be sent of it, and whose it is."""

    __slots__ = ("collective", "owner", "started", "views")

    def __init__(
        self, views: list[memoryview | bytes], owner: PayloadOwner | None, collective: int, started: bool
    ) -> None:
        self.views, self.owner, self.collective, self.started = views, owner, collective, started


def after(views: list[memoryview | bytes], count: int) -> list[memoryview | bytes]:
    """What is left of some buffers after their first `count` bytes."""
    for number, view in enumerate(views):
        if count < len(view):
            return [memoryview(view)[count:], *views[number + 1 :]]
        count -= len(view)
    return []


# Memory in which the payload that comes next lands before it is added to something. One for each lane.


class Scratch:
    """Nearly always the same memory, so it stays in the cache."""

    def __init__(self) -> None:
        self._current = memoryview(bytearray())
        self._spare: list[memoryview] = []

    def take(self, nbytes: int) -> memoryview:
        """Where the next payload lands. It is overwritten by the one after, unless it is lent."""
        if len(self._current) < nbytes:
            self._current = memoryview(bytearray(nbytes))
        return self._current[:nbytes]

    def glance(self, nbytes: int) -> memoryview:
        """As `take`, for a payload that is done with when `arrived` returns, and is never lent.

        Where it lies in memory that is shared with the peer it is read right there.
        """
        return self.take(nbytes)

    def lend(self) -> memoryview:
        """The payload is still needed: the next one gets other memory. To be given back."""
        lent = self._current
        self._current = self._spare.pop() if self._spare else memoryview(bytearray())
        return lent

    def give_back(self, lent: memoryview) -> None:
        """Fresh memory costs a page fault every 4 KiB, so what was lent is used again."""
        self._spare.append(lent)


# Bytes that a wire has made and the kernel has not taken yet.

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
        for piece in _cut(views):
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


def _cut(views: Views) -> Iterator[memoryview | bytes]:
    if sum(map(len, views)) <= SMALL_BYTES:
        return iter((b"".join(views),))
    return chain.from_iterable(
        (memoryview(view)[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES)) for view in views
    )
