"""The network between the ranks of one ring: a proxy before every rank, and what it does to the bytes that pass.

All ranks have the same list of peers, the proxies; each listens elsewhere, where only its proxy connects. A *way* is
one direction of one connection. What happens on it is decided for each piece anew: a fault can come and go at any time.

    network.set(Swallow(), sender=2)                 nothing of what rank 2 sends arrives any more
    network.set(Slow(bytes_per_second=1e6), receiver=2)
    network.reset(sender=0, receiver=1)              the connections between these two end
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

PIECE_BYTES = 256 * 1024
SLOW_PIECE_BYTES = 16 * 1024
LATE_PIECES = 256
BUFFER_BYTES, SMALL_BUFFER_BYTES = 256 * 1024, 32 * 1024
"""Of the proxy's sockets. What they hold has arrived, as far as the sender's kernel knows: on a slow link, not yet."""
NO_LINGER = struct.pack("ii", 1, 0)


class Fault(Protocol):
    """What happens to one piece on its way. What it returns goes on."""

    async def passed(self, way: "Way", piece: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Clear:
    async def passed(self, way: "Way", piece: bytes) -> bytes:
        return piece


@dataclass(frozen=True, slots=True)
class Swallow:
    """A black hole that the sender does not notice: its kernel is told that all has arrived."""

    async def passed(self, way: "Way", piece: bytes) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class Hold:
    """A black hole before which bytes pile up, until nothing more can be sent."""

    async def passed(self, way: "Way", piece: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""


@dataclass(slots=True)
class Slow:
    """All ways with this fault share one line of this rate, in small pieces, so that none waits long for another."""

    bytes_per_second: float
    free_at: float = 0.0

    async def passed(self, way: "Way", piece: bytes) -> bytes:
        now = asyncio.get_running_loop().time()
        self.free_at = max(now, self.free_at) + len(piece) / self.bytes_per_second
        await asyncio.sleep(self.free_at - now)
        return piece


@dataclass(frozen=True, slots=True)
class Late:
    """Every piece arrives so much later, and as fast as before."""

    seconds: float

    async def passed(self, way: "Way", piece: bytes) -> bytes:
        arrival = way.arrived_at + self.seconds
        await asyncio.sleep(max(0.0, arrival - asyncio.get_running_loop().time()))
        return piece


@dataclass(slots=True, eq=False)
class Way:
    """One direction of one connection. Who sends is unknown until somebody asks for a fault of single ranks."""

    network: "Network"
    source: socket.socket
    target: socket.socket
    sender: int | None
    receiver: int | None
    connection: "asyncio.Task[None] | None" = None  # that carries it
    arrived_at: float = 0.0
    waiting: "asyncio.Queue[tuple[float, bytes]]" = field(default_factory=asyncio.Queue)
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    split: "Callable[[bytes], list[bytes]] | None" = None  # into frames, if faults are to meet whole ones

    async def pump(self) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._take())
            both.create_task(self._give())

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        while piece := await _received(self.source, self.network.piece_bytes):
            for part in [piece] if self.split is None else self.split(piece):
                self.waiting.put_nowait((loop.time(), part))
            while self.waiting.qsize() >= self._most_waiting():
                self.taken.clear()
                await self.taken.wait()
        self.waiting.put_nowait((loop.time(), b""))

    def _most_waiting(self) -> int:
        """A long way has many pieces on it; otherwise what does not get through stays with the sender."""
        return LATE_PIECES if isinstance(self.network.fault(self), Late) else 1

    async def _give(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.arrived_at, piece = await self.waiting.get()
            self.taken.set()
            if not piece:
                break
            while piece:
                fault = self.network.fault(self)
                step = piece[:SLOW_PIECE_BYTES] if isinstance(fault, Slow) else piece
                piece = piece[len(step) :]
                if out := await fault.passed(self, step):
                    await loop.sock_sendall(self.target, out)
        if not isinstance(self.network.fault(self), Swallow | Hold):  # an end is swallowed like everything else
            with suppress(OSError):
                self.target.shutdown(socket.SHUT_WR)


async def _received(source: socket.socket, most: int) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(source, most)
    except ConnectionError:
        return b""


class Network:
    """The proxies of one ring."""

    def __init__(
        self,
        split: Callable[[], Callable[[bytes], list[bytes]]] | None = None,
        *,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._split, self._buffer_bytes = split, buffer_bytes
        self._faults: list[tuple[int | None, int | None, Fault]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ways: set[Way] = set()
        self._listeners: list[socket.socket] = []
        self._pids: Sequence[int] = ()

    @property
    def piece_bytes(self) -> int:
        return min(PIECE_BYTES, self._buffer_bytes)

    async def open(self, listening: Sequence[str], pids: Sequence[int]) -> list[str]:
        """A proxy before each of these addresses, which belong to these processes: the list of peers."""
        self._pids = pids
        addresses = []
        for rank, address in enumerate(listening):
            listener = socket.create_server(("127.0.0.1", 0))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer_bytes)
            listener.setblocking(False)
            self._listeners.append(listener)
            self._spawn(self._serve(listener, rank, int(address.rpartition(":")[2])))
            addresses.append(f"127.0.0.1:{listener.getsockname()[1]}")
        return addresses

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    # -- faults

    def set(self, fault: Fault, *, sender: int | None = None, receiver: int | None = None) -> None:
        """From now on, on all ways of this sender, to this receiver. The last that fits a way counts."""
        self._faults.append((sender, receiver, fault))

    def clear(self) -> None:
        self._faults.clear()

    def reset(self, *, sender: int, receiver: int) -> None:
        """End the connections between two ranks as a router would that has forgotten them."""
        for way in list(self.ways(sender, receiver)):
            for sock in (way.source, way.target):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            if way.connection is not None:
                way.connection.cancel()

    def ways(self, sender: int | None = None, receiver: int | None = None) -> Iterator[Way]:
        return (way for way in self._ways if sender in (None, way.sender) and receiver in (None, way.receiver))

    def fault(self, way: Way) -> Fault:
        for sender, receiver, fault in reversed(self._faults):
            if sender in (None, way.sender) and receiver in (None, way.receiver):
                return fault
        return _CLEAR

    # -- connections

    async def _serve(self, listener: socket.socket, rank: int, port: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            dialing, address = await loop.sock_accept(listener)
            self._spawn(self._connect(dialing, self._who(address[1], listener), rank, port))

    async def _connect(self, dialing: socket.socket, dialer: int | None, listener: int, port: int) -> None:
        answering = socket.socket()
        answering.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer_bytes)
        with dialing, answering, suppress(OSError):
            for sock in (dialing, answering):
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._buffer_bytes)
            await asyncio.get_running_loop().sock_connect(answering, ("127.0.0.1", port))
            task = asyncio.current_task()
            there = Way(self, dialing, answering, dialer, listener, task, split=self._split and self._split())
            back = Way(self, answering, dialing, listener, dialer, task, split=self._split and self._split())
            self._ways |= {there, back}
            try:
                await _first_failure(there.pump(), back.pump())
            finally:
                self._ways -= {there, back}

    def _who(self, port: int, listener: socket.socket) -> int | None:
        """Which rank dials, whatever it says: the process that has the other end of this connection.

        To look takes milliseconds. Frames are damaged in thousands of rings, and wherever they are.
        """
        if self._split is not None:
            return None  # nobody asks
        inode = _inode_of(port, listener.getsockname()[1])
        found = [rank for rank, pid in enumerate(self._pids) if inode and _has_socket(pid, inode)]
        return found[0] if found else None

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _first_failure(*pumps: Coroutine[None, None, None]) -> None:
    """Until both ways have ended, or one broke: then neither has a use."""
    tasks = [asyncio.create_task(pump) for pump in pumps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _inode_of(local_port: int, remote_port: int) -> str:
    """The socket of a connection on loopback, as /proc/PID/fd names it."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{local_port:04X}") and fields[2].endswith(f":{remote_port:04X}"):
            return fields[9]
    return ""


def _has_socket(pid: int, inode: str) -> bool:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                if os.readlink(f"{folder}/{name}") == f"socket:[{inode}]":
                    return True
    return False


_CLEAR = Clear()
