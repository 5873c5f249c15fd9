"""Two lanes with a real connection between them, TCP or Unix-domain, and what the contract needs to watch them."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import Enum

from tests.transport.certificates import own_contexts

from ringwide.protocol.frame import Header, pack_data
from ringwide.transport.aead_wire import EncryptedWire
from ringwide.transport.lane import Lane
from ringwide.transport.shm_arena import ArenaReader, ArenaShape, ArenaWriter
from ringwide.transport.shm_lane import SharedLane, SharedWire
from ringwide.transport.tls import tls_handshake
from ringwide.transport.wire import PlainWire, Wire

PATIENCE_SECONDS = 60
LIMIT_BYTES = 64 * 1024 * 1024
SMALL_BUFFER_BYTES = 8 * 1024
SMALL_ARENA = ArenaShape(2, 256 * 1024)


class Listener:
    """Writes down what happens on a lane. `open` is the gate for large payloads: closed, they have no place to land."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.losses: list[Exception] = []
        self.has_ended = False
        self.open = True
        self.refusals = 0
        self._changed = asyncio.Event()

    def landing(self, lane: Lane, header: Header, _: memoryview | None = None) -> memoryview | None:
        if not self.open:
            self.refusals += 1
            self._changed.set()
            return None
        return memoryview(bytearray(header.payload_bytes))

    def arrived(self, lane: Lane, header: Header, payload: memoryview) -> None:
        self.frames.append((header.segment, bytes(payload)))
        self._changed.set()

    def ended(self, lane: Lane) -> None:
        self.has_ended = True
        self._changed.set()

    def lost(self, lane: Lane, reason: Exception) -> None:
        self.losses.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_frames(self, count: int) -> None:
        await self.until(lambda: len(self.frames) >= count or self.losses)
        assert not self.losses

    async def until_lost(self) -> Exception:
        await self.until(lambda: self.losses)
        return self.losses[0]


class OwnedPayload:
    """A payload that belongs to somebody, who notes how much the lane had sent whenever it is told "sent"."""

    def __init__(self, lane: Lane, payload: bytes | bytearray) -> None:
        self.lane, self.memory = lane, bytearray(payload)
        self.told_at: list[int] = []

    def sent(self) -> None:
        self.told_at.append(self.lane.bytes_sent)

    def overwrite(self) -> None:
        self.memory[:] = bytes(len(self.memory))


def header_of(number: int, payload_bytes: int) -> bytes:
    return pack_data(bucket=0, hop=0, epoch=0, segment=number, collective=0, fingerprint=0, payload_bytes=payload_bytes)


def send(lane: Lane, number: int, payload: bytes | bytearray) -> None:
    lane.send(header_of(number, len(payload)), memoryview(payload))


def send_owned(lane: Lane, number: int, owned: OwnedPayload, *, collective: int = 0) -> None:
    header = header_of(number, len(owned.memory))
    lane.send(header, memoryview(owned.memory), owner=owned, key=collective)


def pattern(nbytes: int, seed: int = 1) -> bytes:
    """Bytes in which a shift, a gap or another frame's bytes would show."""
    period = bytes((seed * 37 + 11 * place) % 251 for place in range(251))
    return (period * (nbytes // 251 + 1))[:nbytes]


@contextmanager
def tcp_pair(buffer_bytes: int | None = None) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.socket() as server:
        if buffer_bytes is not None:  # connections inherit it: only before connecting can a window be made small
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        one = socket.socket()
        if buffer_bytes is not None:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        one.connect(server.getsockname())
        other, _ = server.accept()
    for sock in (one, other):
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    with one, other:
        yield one, other


@contextmanager
def unix_pair(buffer_bytes: int | None = None) -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for sock in (one, other):
        sock.setblocking(False)
        if buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    with one, other:
        yield one, other


class Wiring(Enum):
    """What lies between a lane and its peer."""

    MEMORY = "memory"
    UNIX = "unix"
    PLAIN = "plain"
    SEALED = "sealed"
    TLS = "tls"
    ENCRYPTED = "encrypted"

    async def wires(self, here: socket.socket, there: socket.socket) -> tuple[Wire, Wire]:
        match self:
            case Wiring.TLS:
                contexts = own_contexts()
                dialed = tls_handshake(here, contexts.dialing, server_side=False)
                return await asyncio.gather(dialed, tls_handshake(there, contexts.listening, server_side=True))
            case Wiring.ENCRYPTED:
                one, other = bytes(range(32)), bytes(range(32, 64))
                return EncryptedWire(here, one, other), EncryptedWire(there, other, one)
            case Wiring.MEMORY:
                return shared_wires(here, there)
            case _:
                return PlainWire(here), PlainWire(there)


def shared_wires(
    here: socket.socket, there: socket.socket, shape: ArenaShape = SMALL_ARENA
) -> tuple[SharedWire, SharedWire]:
    """As two ranks that have handed each other their memory."""
    one, other = ArenaWriter(shape), ArenaWriter(shape)
    to_there, to_here = (ArenaReader(shape, *map(os.dup, outgoing.files)) for outgoing in (one, other))
    one.handed_over()
    other.handed_over()
    return SharedWire(here, one, to_here), SharedWire(there, other, to_there)


class Ends:
    """Both ends of one connection: lanes `here` and `there`, and who listens to each."""

    def __init__(self, wires: tuple[Wire, Wire], index: int, staging_bytes: int, sealed: bool) -> None:
        self.hearing_here, self.hearing_there = Listener(), Listener()
        self.wires = wires
        self.here = self._lane(wires[0], self.hearing_here, index, staging_bytes, sealed)
        self.there = self._lane(wires[1], self.hearing_there, index, staging_bytes, sealed)

    @staticmethod
    def _lane(wire: Wire, events: Listener, index: int, staging_bytes: int, sealed: bool) -> Lane:
        if isinstance(wire, SharedWire):
            staged = {"staging_bytes": max(staging_bytes, 4096), "lands_all": index > 0}
            return SharedLane(wire, peer=1, index=index, events=events, limit_bytes=LIMIT_BYTES, **staged)
        return Lane(
            wire,
            peer=1,
            index=index,
            events=events,
            limit_bytes=LIMIT_BYTES,
            staging_bytes=max(staging_bytes, 1),
            sealed=sealed,
        )


@asynccontextmanager
async def lanes(
    *,
    buffer_bytes: int | None = None,
    index: int = 1,
    staging_bytes: int = 0,
    wiring: Wiring = Wiring.PLAIN,
) -> AsyncIterator[Ends]:
    with (unix_pair if wiring in (Wiring.MEMORY, Wiring.UNIX) else tcp_pair)(buffer_bytes) as sockets:
        ends = Ends(await wiring.wires(*sockets), index, staging_bytes, wiring is Wiring.SEALED)
        try:
            yield ends
        finally:
            ends.here.close()
            ends.there.close()


@asynccontextmanager
async def lane_and_raw_socket(
    index: int = 1, *, sealed: bool = False
) -> AsyncIterator[tuple[Lane, Listener, socket.socket]]:
    """A lane whose other end is a bare socket, which may send what it likes."""
    with tcp_pair() as (ours, raw_socket):
        listener = Listener()
        lane = Lane(PlainWire(ours), peer=1, index=index, events=listener, limit_bytes=LIMIT_BYTES, sealed=sealed)
        try:
            yield lane, listener, raw_socket
        finally:
            lane.close()
