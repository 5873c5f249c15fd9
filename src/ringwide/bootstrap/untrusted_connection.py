"""Connection during its handshake: a few small frames, and nothing in them is trusted."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Any, NamedTuple

from ringwide.bootstrap.unix_sockets import is_unix, peer_host
from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import HEADER_BYTES, FrameKind, check_payload
from ringwide.protocol.handshake import Difference, check_prefix, read_header
from ringwide.transport.wire import CutOff, Wire

HANDSHAKE_BYTES = 4096
"""Most that either side may send before the handshake is over."""
_PREFIX_BYTES = 3


class HungUp(RemoteProtocolError):
    """The other end closed the connection, which may mean anything."""


class OtherVersion(RemoteProtocolError):
    """The other end speaks another version of the protocol."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(f"it speaks protocol version {difference.dialer}, this rank speaks {difference.listener}")
        self.difference = difference


class HandshakeFrame(NamedTuple):
    """One frame of a handshake."""

    kind: FrameKind
    body: bytes


class UntrustedConnection:
    """One connection during its handshake. It never reads beyond the handshake.

    `on_answer` is called by the handshake after each valid message, though its sender may still be anybody.
    """

    def __init__(self, wire: Wire, on_answer: Callable[[], None] = lambda: None) -> None:
        self.wire, self.on_answer = wire, on_answer
        self._bytes_left = HANDSHAKE_BYTES

    @property
    def same_host(self) -> bool:
        """Whether the other end is on this machine."""
        if is_unix(self.wire.socket):
            return True
        there, here = host_of(self.wire.socket), str(self.wire.socket.getsockname()[0])
        return there == here or (there != "" and ip_address(there.partition("%")[0]).is_loopback)

    async def send(self, frame: bytes) -> None:
        """Send a frame. It does not wait if the kernel has room, which for so little it nearly always has."""
        rest = memoryview(frame)
        while rest or self.wire.unsent:
            try:
                if rest:
                    rest = rest[self.wire.send([rest]) :]
                else:
                    self.wire.flush()
                    if self.wire.unsent:
                        raise BlockingIOError
            except (BlockingIOError, InterruptedError):
                await until_writable(self.wire.socket)

    async def receive(self) -> HandshakeFrame:
        prefix = await self._exactly(_PREFIX_BYTES)
        difference = check_prefix(prefix)
        if difference is not None:
            raise OtherVersion(difference)
        header = read_header(prefix + await self._exactly(HEADER_BYTES - _PREFIX_BYTES))
        body = await self._exactly(header.payload_bytes)
        check_payload(header, body)
        return HandshakeFrame(FrameKind(header.kind), body)

    async def _exactly(self, count: int) -> bytes:
        if count > self._bytes_left:
            raise RemoteProtocolError(f"a handshake of more than {HANDSHAKE_BYTES} bytes")
        self._bytes_left -= count
        data, filled = bytearray(count), 0
        while filled < count:
            try:
                received = self.wire.receive([memoryview(data)[filled:]])
            except (BlockingIOError, InterruptedError):
                await until_readable(self.wire.socket)
                continue
            except CutOff as error:
                raise HungUp(str(error)) from error
            if not received:
                raise HungUp("the connection ended in the middle of a handshake")
            filled += received
        return bytes(data)


async def until_readable(*sockets: socket.socket) -> None:
    """Wait until any of the sockets is readable."""
    loop = asyncio.get_running_loop()
    await _event(sockets, loop.add_reader, loop.remove_reader)


async def until_writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await _event((sock,), loop.add_writer, loop.remove_writer)


async def _event(sockets: Sequence[socket.socket], add: Callable[..., Any], remove: Callable[..., Any]) -> None:
    event: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for sock in sockets:
        add(sock, _happened, event)
    try:
        await event
    finally:
        for sock in sockets:
            remove(sock)


def _happened(event: "asyncio.Future[None]") -> None:
    if not event.done():
        event.set_result(None)


def host_of(sock: socket.socket) -> str:
    """The address of the other end. Empty if it has gone."""
    try:
        return peer_host(sock) if is_unix(sock) else str(sock.getpeername()[0])
    except OSError:
        return ""
