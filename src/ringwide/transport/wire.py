"""A wire: the byte stream under a lane, either a bare socket or an encrypted one.

Rules:
- `send` takes bytes of the lane and returns how many it took, or raises `BlockingIOError` if it can take none. The
  caller may reuse what was taken: it has left, or it was copied and waits in the wire (`unsent`) for `flush`.
- `receive` fills the given buffers with bytes of the lane. 0 means the end; `BlockingIOError` means that the kernel has
  nothing now. On a plain wire, buffers that were not filled mean that too; on any other wire they mean nothing.
- An end inside a record of the wire's own (its encryption, for example) raises `CutOff`.
- While `more` is true, `receive` may return bytes although the kernel has none and will wake nobody.
"""

from collections.abc import Sequence
from socket import socket as Socket
from typing import Protocol

Views = Sequence[memoryview | bytes]


class CutOff(EOFError):
    """The stream ended inside a frame, a record or a heartbeat."""


class Wire(Protocol):
    """One connection, as the lane on it sees it."""

    @property
    def socket(self) -> Socket: ...

    @property
    def plain(self) -> bool:
        """Whether the kernel carries the lane's bytes unchanged."""

    @property
    def unsent(self) -> bool:
        """Whether bytes wait in the wire for `flush`."""

    @property
    def more(self) -> bool:
        """Whether `receive` may return bytes that the kernel does not know of."""

    @property
    def send(self) -> "SendMethod": ...

    def receive(self, room: Sequence[memoryview]) -> int: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class SendMethod(Protocol):
    """Type of `Wire.send`. As a type of its own it lets a plain wire use the socket's method itself."""

    def __call__(self, views: Views, /) -> int: ...


class PlainWire:
    """The bare socket, with as little on top as possible."""

    __slots__ = ("send", "socket")

    plain = True
    unsent = more = False

    def __init__(self, sock: Socket) -> None:
        self.socket = sock
        self.send: SendMethod = sock.sendmsg

    def receive(self, room: Sequence[memoryview]) -> int:
        return self.socket.recv_into(room[0]) if len(room) == 1 else self.socket.recvmsg_into(room)[0]

    def flush(self) -> None: ...

    def close(self) -> None:
        self.socket.close()
