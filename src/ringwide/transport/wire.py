"""A wire: what a lane reads and writes. A bare socket, or one whose bytes are encrypted on the way.

Rules:
- `send` takes bytes as they are on the lane and says how many; `BlockingIOError` if it can take none. What it has taken
  is free: it has left, or it was copied and waits in the wire (`unsent`) until `flush` can hand it to the kernel.
- `receive` fills a room with such bytes; 0 is the end, and `BlockingIOError` means that the kernel has nothing now.
  An end in the middle of something that the wire itself has put around those bytes is `CutOff`.
  Fewer bytes than there is room mean the same on a plain wire, and nothing on any other.
- While `more` is true, `receive` may have an answer although the kernel has nothing and will wake nobody.
"""

from collections.abc import Sequence
from socket import socket as Socket
from typing import Protocol

Views = Sequence[memoryview | bytes]


class CutOff(EOFError):
    """A stream has ended in the middle of something: a frame, a record, a sign of life."""


class Wire(Protocol):
    """One connection, as the lane on it sees it."""

    @property
    def socket(self) -> Socket: ...

    @property
    def plain(self) -> bool:
        """Are the kernel's bytes the lane's bytes?"""

    @property
    def unsent(self) -> bool: ...

    @property
    def more(self) -> bool: ...

    @property
    def send(self) -> "Taking": ...

    def receive(self, room: Sequence[memoryview]) -> int: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Taking(Protocol):
    """How a wire takes bytes. A type of its own, so that a plain wire can give the socket's method itself."""

    def __call__(self, views: Views, /) -> int: ...


class PlainWire:
    """The bare socket, with as little on top as can be."""

    __slots__ = ("send", "socket")

    plain = True
    unsent = more = False

    def __init__(self, sock: Socket) -> None:
        self.socket = sock
        self.send: Taking = sock.sendmsg

    def receive(self, room: Sequence[memoryview]) -> int:
        return self.socket.recv_into(room[0]) if len(room) == 1 else self.socket.recvmsg_into(room)[0]

    def flush(self) -> None: ...

    def close(self) -> None:
        self.socket.close()
