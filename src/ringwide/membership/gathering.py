"""The ranks find each other: everyone listens, the higher rank dials the lower, and both compare how they were started.

Every pair of ranks has an express lane, so that news (a rank is lost, ranks disagree) reaches everybody in one hop.
Bulk lanes are opened only between those who exchange bulk. Ranks may start in any order; whoever dials tries again
until the other is there or the start timeout is over. After the ring has formed the listener stays, and turns away.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence

from ringwide.errors import JoinError, RemoteProtocolError, StartTimeout
from ringwide.membership.listening import unresolvable
from ringwide.membership.peers import Address
from ringwide.protocol.frame import HEADER_BYTES, Kind, check_payload
from ringwide.protocol.handshake import (
    Difference,
    Hello,
    Setting,
    check_prefix,
    differences,
    read_difference,
    read_header,
    read_hello,
)
from ringwide.transport.wire import PlainWire, Wire

logger = logging.getLogger("ringwide.membership")

HANDSHAKE_SECONDS = 5.0
REMIND_SECONDS = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_STRANGERS_AT_A_TIME = 64

OnSocket = Callable[[int, int, Wire], None]
"""on_socket(peer, lane, wire): a connection is ready."""


class Gathering:
    """One rank's way into the ring."""

    def __init__(
        self,
        *,
        rank: int,
        addresses: Sequence[Address],
        lanes: Mapping[int, Sequence[int]],
        settings: Mapping[str, Setting],
        peers_digest: str,
        on_socket: OnSocket,
    ) -> None:
        self._rank, self._addresses, self._lanes = rank, addresses, lanes
        self._settings, self._peers_digest, self._on_socket = settings, peers_digest, on_socket
        self._missing = {(peer, lane) for peer, indexes in lanes.items() for lane in indexes}
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def fail(self, error: Exception) -> None:
        """Joining is over; `run` raises this."""
        if not self._outcome.done():
            self._outcome.set_exception(error)

    async def run(self, *, timeout_seconds: float) -> None:
        """Return when every connection is there."""
        tasks = [asyncio.create_task(self._dial_peer(peer)) for peer in self._lanes if peer < self._rank]
        tasks += [asyncio.create_task(self._resolve(peer)) for peer in self._lanes if peer > self._rank]
        tasks.append(asyncio.create_task(self._remind()))
        self._check_complete()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._outcome
        except TimeoutError as error:
            raise StartTimeout(rank=self._rank, missing=self._missing_names(), seconds=timeout_seconds) from error
        finally:
            await _end(tasks)

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections for as long as this task runs."""
        try:
            while True:
                sock = await self._accept(listener)
                if len(self._handshakes) >= _STRANGERS_AT_A_TIME:
                    sock.close()
                    continue
                task = asyncio.create_task(self._guarded(self._answer(sock), sock))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
        finally:
            await _end(list(self._handshakes))

    # -- the one that listens

    async def _accept(self, listener: socket.socket) -> socket.socket:
        while True:
            try:
                return (await self._loop.sock_accept(listener))[0]
            except OSError as error:  # out of descriptors, for example: that may pass
                logger.warning("rank %d cannot accept a connection: %s", self._rank, error)
                await asyncio.sleep(_LONGEST_PAUSE)

    async def _answer(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            kind, body = await self._receive(sock)
            if isinstance(body, Difference):
                await self._refuse(sock, body, "a peer")
                return
            if kind != Kind.HELLO:
                raise RemoteProtocolError(f"a {kind.name} where a HELLO was due")
            theirs = read_hello(body)
            difference = differences(dialer=theirs, listener=self._hello(theirs.lane))
            if difference is None and (theirs.rank, theirs.lane) not in self._missing:
                difference = self._why_unexpected(theirs, sock)
            if difference is not None:
                await self._refuse(sock, difference, f"rank {theirs.rank}")
                return
            await self._loop.sock_sendall(sock, self._hello(theirs.lane).pack(Kind.WELCOME))
        self._arrived(theirs.rank, theirs.lane, sock)

    def _why_unexpected(self, theirs: Hello, sock: socket.socket) -> Difference:
        second = f"a second rank {theirs.rank} (from {sock.getpeername()[0]})"
        return Difference(
            "rank (each rank must be started once)", second, f"a rank {theirs.rank} that has joined already"
        )

    async def _refuse(self, sock: socket.socket, difference: Difference, peer: str) -> None:
        await self._loop.sock_sendall(sock, difference.pack())
        sock.close()
        error = difference.as_error(rank=self._rank, peer=peer, dialed=False)
        if self._outcome.done():
            logger.warning("turned away: %s", error)
        self.fail(error)

    # -- the one that dials

    async def _dial_peer(self, peer: int) -> None:
        """All lanes to one peer, the express lane first: what the two disagree on is found before there are more."""
        for lane in self._lanes[peer]:
            while (peer, lane) in self._missing:  # it may be turned away in a crowd, or meet one that is about to end
                sock = await self._connect(self._addresses[peer])
                if sock is None:
                    return
                await self._guarded(self._introduce(sock, peer, lane), sock)
                await asyncio.sleep(_FIRST_PAUSE if (peer, lane) in self._missing else 0)

    async def _connect(self, address: Address) -> socket.socket | None:
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._try_connect(address)
            except (socket.gaierror, UnicodeError) as error:
                self.fail(unresolvable(address, error))
                return None
            except OSError as error:
                logger.debug("dial address=%s error=%s", address, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _resolve(self, peer: int) -> None:
        """A name that nobody here dials must be right all the same: a rank that waits for it would wait in vain."""
        address = self._addresses[peer]
        try:
            await self._loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            self.fail(unresolvable(address, error))

    async def _try_connect(self, address: Address) -> socket.socket:
        family, kind, proto, _, sockaddr = (
            await self._loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        )[0]
        sock = socket.socket(family, kind, proto)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._loop.sock_connect(sock, sockaddr)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _introduce(self, sock: socket.socket, peer: int, lane: int) -> None:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await self._loop.sock_sendall(sock, self._hello(lane).pack(Kind.HELLO))
            kind, body = await self._receive(sock)
        difference = self._judge_answer(kind, body, lane, peer)
        if difference is None:
            self._arrived(peer, lane, sock)
            return
        sock.close()
        self.fail(difference.as_error(rank=self._rank, peer=f"rank {peer}", dialed=True))

    def _judge_answer(self, kind: Kind, body: "bytes | Difference", lane: int, peer: int) -> Difference | None:
        if isinstance(body, Difference):  # of versions, and seen from the other side
            return Difference(body.field, body.listener, body.dialer)
        if kind == Kind.REFUSED:
            return read_difference(body)
        theirs = read_hello(body)
        if theirs.rank != peer:
            address = self._addresses[peer]
            return Difference(f"rank at {address} in the peers file", peer, theirs.rank)
        return differences(dialer=self._hello(lane), listener=theirs)

    # -- both

    def _hello(self, lane: int) -> Hello:
        return Hello(self._rank, len(self._addresses), lane, self._peers_digest, self._settings)

    async def _receive(self, sock: socket.socket) -> "tuple[Kind, bytes | Difference]":
        prefix = await self._exactly(sock, 3)
        version = check_prefix(prefix)
        if version is not None:
            return Kind.HELLO, version
        header = read_header(prefix + await self._exactly(sock, HEADER_BYTES - len(prefix)))
        body = await self._exactly(sock, header.payload_bytes)
        check_payload(header, body)
        return Kind(header.kind), body

    async def _exactly(self, sock: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = await self._loop.sock_recv(sock, count - len(data))
            if not more:
                raise RemoteProtocolError("the connection ended in the middle of a handshake")
            data += more
        return data

    async def _guarded(self, handshake: Coroutine[None, None, None], sock: socket.socket) -> None:
        """A stranger's bytes, or a connection that breaks, cost only that connection."""
        try:
            await handshake
        except (OSError, TimeoutError, RemoteProtocolError) as error:
            logger.info("handshake failed: %s", error)
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise

    def _arrived(self, peer: int, lane: int, sock: socket.socket) -> None:
        self._on_socket(peer, lane, PlainWire(sock))
        self._missing.discard((peer, lane))
        self._check_complete()

    def _check_complete(self) -> None:
        if not self._missing and not self._outcome.done():
            self._outcome.set_result(None)

    def _missing_names(self) -> list[str]:
        return [f"rank {peer} ({self._addresses[peer]})" for peer in sorted({peer for peer, _ in self._missing})]

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(REMIND_SECONDS)
            logger.warning("rank %d is waiting for %s", self._rank, ", ".join(self._missing_names()))


async def _end(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception) and not isinstance(outcome, JoinError):
            raise outcome
