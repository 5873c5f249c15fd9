"""Formation of the ring: every rank listens, the higher rank dials the lower, and both compare how they were started.

Every pair of ranks has an express lane, so that control frames (a rank is lost, ranks disagree) reach everybody in one
hop. Bulk lanes are opened only between ranks that exchange bulk. Ranks may start in any order: a dialer tries again
until the other is there or the start timeout is over. After the ring has formed, the listener stays and refuses
connections.
"""

import asyncio
import functools
import logging
import os
import socket
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from ringwide.bootstrap.accept import Acceptor, OnAnswer, RefusedConnections, pause_after
from ringwide.bootstrap.dial import DialTarget, NoUnixSocket, connect, resolve, why_not_connected
from ringwide.bootstrap.handshake import Handshaken, HandshakeTerms, Refused, initiate, respond
from ringwide.bootstrap.listen import unresolvable
from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.unix_sockets import SameHost, is_local, why_not_ours
from ringwide.bootstrap.untrusted_connection import HungUp, UntrustedConnection, host_of
from ringwide.errors import ConfigError, JoinError, RemoteProtocolError, StartTimeout
from ringwide.protocol.handshake import Difference, Hello
from ringwide.protocol.key_proof import NONCE_BYTES
from ringwide.transport.sockets import Transport, transport_of
from ringwide.transport.tls import tls_handshake
from ringwide.transport.wire import PlainWire, Wire

logger = logging.getLogger("ringwide.bootstrap")

PROBLEMS_PER_PEER = 4
"""Most warnings about one peer: one that sends garbage causes a new problem every time."""
HANDSHAKE_SECONDS, ANSWER_SECONDS = 5.0, 20.0
"""Limits for the listener, whose client may be anybody, and for the dialer, which may have to wait for its turn."""
REMIND_SECONDS = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_FAILED_TRIES = 3
"""A peer may hang up so often in a row before it is logged: it may just be starting or ending."""

_OTHER_TLS = "was it started without tls, or with a certificate of another authority?"
_OTHER_NAME = "is our certificate of another authority, or of another name than its tls.names has for us?"

OnLane = Callable[[int, int, Wire, bool], None]
"""on_lane(peer, lane, wire, sealed): a connection is ready."""


class PeerProblems:
    """Problems on the way to each peer. Each is logged once, however often it occurs."""

    def __init__(self) -> None:
        self._last: dict[int, str] = {}
        self._usual: dict[int, str] = {}
        self._logged: dict[int, set[str]] = {}

    def note(self, peer: int, address: object, problem: str) -> None:
        self._last[peer] = problem
        logged = self._logged.setdefault(peer, set())
        if problem not in logged and len(logged) < PROBLEMS_PER_PEER:
            logged.add(problem)
            logger.warning("rank %d at %s: %s", peer, address, problem)

    def wait_for(self, peer: int, why: str) -> None:
        """Note what is usual while ranks start or end: a reason to wait, if there is no other."""
        self._usual[peer] = why

    def solved(self, peer: int) -> None:
        self._last.pop(peer, None)
        self._usual.pop(peer, None)

    def of(self, peer: int) -> str | None:
        return self._last.get(peer) or self._usual.get(peer)


class RingFormation:
    """One rank's side of the formation of a ring."""

    def __init__(
        self,
        *,
        terms: HandshakeTerms,
        addresses: Sequence[Address],
        lanes: Mapping[int, Sequence[int]],
        on_lane: OnLane,
        same_host: SameHost,
    ) -> None:
        self._rank, self._terms = terms.rank, terms
        self._addresses, self._lanes, self._on_lane = addresses, lanes, on_lane
        self._missing = _pairs(lanes)
        self._same_host = same_host
        self._not_by_unix: set[int] = set()  # peers whose Unix-domain socket belongs to another process
        self._problems = PeerProblems()
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[None] = self._loop.create_future()
        self._openings: dict[asyncio.Future[None], set[tuple[int, int]]] = {}  # lanes that are opened later
        self._dialing: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)  # by peer
        self._refused = RefusedConnections(terms.rank, clock=self._loop.time)
        self._costliest_seconds = 0.0  # most CPU time that a TLS handshake has taken

    def fail(self, error: Exception) -> None:
        """Give up joining: `run` raises this error, and so does `open_more`."""
        for opened in (self._outcome, *self._openings):
            if not opened.done():
                opened.set_exception(error)

    async def run(self, *, timeout_seconds: float) -> None:
        """Dial and wait until every connection is there."""
        dials: list[Coroutine[Any, Any, object]] = [
            self._dial_peer(peer, lanes) if peer < self._rank else self._resolve(peer)
            for peer, lanes in self._lanes.items()
        ]
        await self._until(self._outcome, [*dials, self._remind()], timeout_seconds)

    def expect(self, lanes: Mapping[int, Sequence[int]]) -> None:
        """Expect more lanes in a ring that has formed. `open_more` opens them, once the other ends expect them too."""
        self._missing |= _pairs(lanes)

    async def open_more(self, lanes: Mapping[int, Sequence[int]], *, timeout_seconds: float) -> None:
        """Open lanes that are expected, and wait until they are there."""
        opened: asyncio.Future[None] = self._loop.create_future()
        self._openings[opened] = _pairs(lanes)
        dials = [self._dial_peer(peer, indexes) for peer, indexes in lanes.items() if peer < self._rank]
        try:
            await self._until(opened, dials, timeout_seconds)
        finally:
            del self._openings[opened]

    async def _until(
        self, opened: "asyncio.Future[None]", dials: Sequence[Coroutine[Any, Any, object]], timeout_seconds: float
    ) -> None:
        tasks = [asyncio.create_task(dial) for dial in dials]
        self._check_complete()
        try:
            async with asyncio.timeout(timeout_seconds):
                await opened
        except TimeoutError as error:
            raise StartTimeout(rank=self._rank, missing=self._missing_names(), seconds=timeout_seconds) from error
        finally:
            await _end(tasks)

    async def serve(self, *listeners: socket.socket) -> None:
        """Accept connections as long as this task runs."""
        acceptor = Acceptor(
            rank=self._rank, handshake=self._respond, pause_seconds=self._pause_seconds, refused=self._refused
        )
        await acceptor.serve(*listeners)

    def _pause_seconds(self) -> float:
        return pause_after(self._costliest_seconds) if self._outcome.done() else 0.0

    # -- the listener

    async def _respond(self, sock: socket.socket, on_answer: OnAnswer) -> None:
        """Do the listener's handshake. Unknown bytes, or a connection that breaks, cost only that connection."""
        sock.setblocking(False)
        host, nonce = host_of(sock), os.urandom(NONCE_BYTES)
        if problem := why_not_ours(sock):
            sock.close()
            self._refused.refused(host, problem)
            return
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                channel = UntrustedConnection(await self._wire(sock, dialed=False, on_answer=on_answer), on_answer)
                object_to = functools.partial(self._object_to, host, transport_of(sock))
                outcome = await respond(channel, self._terms, object_to=object_to, nonce=nonce)
        except ConnectionAbortedError as error:
            sock.close()
            self._refused.refused(host, f"{error}: {_OTHER_TLS}")
        except (OSError, TimeoutError, HungUp, MemoryError) as error:
            sock.close()
            self._refused.ended(host, str(error) or f"it did not say who it is within {HANDSHAKE_SECONDS:g} s")
        except RemoteProtocolError as error:
            sock.close()
            self._refused.refused(host, error)
        else:
            self._conclude(outcome, sock, host, dialed=False)

    def _object_to(self, host: str, transport: Transport, theirs: Hello) -> Difference | None:
        if transport == "tcp" and self._same_host == "unix":
            return Difference("same_host", "tcp", "unix")
        return self._duplicate_of(theirs.rank, theirs.lane, host)

    def _duplicate_of(self, rank: int, lane: int, host: str) -> Difference | None:
        if (rank, lane) in self._missing:
            return None
        return Difference(
            "rank (each rank must be started once)",
            f"a second rank {rank} (from {host})",
            f"a rank {rank} that has joined already",
        )

    # -- the dialer

    async def _dial_peer(self, peer: int, lanes: Sequence[int]) -> None:
        """Open lanes to one peer. Of several openings that want the same lane, the first one dials."""
        async with self._dialing[peer]:
            await self._dial_lanes(peer, lanes)

    async def _dial_lanes(self, peer: int, lanes: Sequence[int]) -> None:
        """The express lane comes first: a disagreement is found before the others are opened."""
        for lane in lanes:
            pause, hung_up = _FIRST_PAUSE, 0
            while (peer, lane) in self._missing:  # the peer may have too many connections, or be about to end
                sock = await self._connect(peer)
                if sock is None:
                    return
                transport = transport_of(sock)
                hung_up = 0 if await self._initiate(sock, peer, lane) else hung_up + 1
                if hung_up == _FAILED_TRIES:
                    self._note_problem(peer, self._why_it_hangs_up())
                if (peer, lane) in self._missing:
                    if transport == "unix" and hung_up in (0, _FAILED_TRIES):
                        self._not_by_unix.add(peer)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)

    async def _initiate(self, sock: socket.socket, peer: int, lane: int) -> bool:
        """Do the dialer's handshake. False: the peer only hung up, as one does that is about to start or to end."""
        address, nonce = self._addresses[peer], os.urandom(NONCE_BYTES)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                channel = UntrustedConnection(await self._wire(sock, dialed=True))
                outcome = await initiate(channel, self._terms, peer=peer, address=address, lane=lane, nonce=nonce)
        except TimeoutError:
            sock.close()
            self._note_problem(peer, f"it does not answer within {ANSWER_SECONDS:g} s")
        except ConnectionAbortedError as error:
            sock.close()
            self._note_problem(peer, f"{error}: {_OTHER_TLS}")
        except (OSError, HungUp):
            sock.close()
            return False
        except MemoryError as error:
            sock.close()
            self._note_problem(peer, f"no memory for the handshake: {error}")
        except RemoteProtocolError as error:
            sock.close()
            self._note_problem(peer, str(error))
        except asyncio.CancelledError:
            sock.close()
            raise
        else:
            self._conclude(outcome, sock, str(address), dialed=True)
        return True

    def _note_problem(self, peer: int, problem: str) -> None:
        self._problems.note(peer, self._addresses[peer], problem)

    def _why_it_hangs_up(self) -> str:
        if self._terms.protection.tls is not None:
            return f"it hangs up: {_OTHER_TLS if self._terms.protection.tls.names is None else _OTHER_NAME}"
        if not self._terms.protection.secrets:
            return "it hangs up without an answer: was it started with key_file or tls, and this rank without?"
        return "it hangs up without a proof that it has our key: is it a rank of this ring, and of this version?"

    async def _connect(self, peer: int) -> socket.socket | None:
        pause, failed = _FIRST_PAUSE, 0
        while True:
            try:
                return await self._try_connect(peer)
            except NoUnixSocket as error:
                failed += 1
                if failed == _FAILED_TRIES:  # its socket may have listened before it joined
                    self._note_problem(peer, str(error))
            except OSError as error:
                self._problems.wait_for(peer, why_not_connected(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _try_connect(self, peer: int) -> socket.socket | None:
        target = await self._resolve(peer)
        if target is None:
            return None
        transport: SameHost = "tcp" if self._same_host == "auto" and peer in self._not_by_unix else self._same_host
        return await connect(target, same_host=transport, timeout_seconds=HANDSHAKE_SECONDS)

    async def _resolve(self, peer: int) -> DialTarget | None:
        """Resolve a peer's address, also if this rank does not dial it: otherwise it would wait for it in vain."""
        address = self._addresses[peer]
        try:
            target = await resolve(address)
        except (socket.gaierror, UnicodeError) as error:
            self.fail(unresolvable(address, error))
            return None
        if self._same_host == "unix" and not is_local(*target):
            self.fail(
                ConfigError(
                    f"same_host: unix, but rank {peer} ({address}) is not on this machine; "
                    "use same_host: auto, which takes TCP to ranks elsewhere"
                )
            )
            return None
        return target

    # -- both

    async def _wire(self, sock: socket.socket, *, dialed: bool, on_answer: OnAnswer = lambda: None) -> Wire:
        tls = self._terms.protection.tls
        if tls is None:
            return PlainWire(sock)
        context = tls.dialing if dialed else tls.listening
        return await tls_handshake(sock, context, server_side=not dialed, on_cost=self._note_cost, on_answer=on_answer)

    def _note_cost(self, seconds: float) -> None:
        self._costliest_seconds = max(self._costliest_seconds, seconds)

    def _conclude(self, outcome: Handshaken | Refused, sock: socket.socket, host: str, *, dialed: bool) -> None:
        if isinstance(outcome, Handshaken):
            # Checked again: another process of the same rank may have joined while the two exchanged memory.
            difference = self._duplicate_of(outcome.peer, outcome.lane, host)
            if difference is None:
                self._add_lane(outcome)
                return
            outcome.wire.close()
            outcome = Refused(f"rank {outcome.peer}", difference)
        sock.close()
        error = outcome.difference.as_error(rank=self._rank, peer=outcome.peer, dialed=dialed)
        if self._outcome.done():
            self._refused.refused(host, error)
        self.fail(error)

    def _add_lane(self, done: Handshaken) -> None:
        try:
            self._on_lane(done.peer, done.lane, done.wire, done.sealed)
        except Exception as error:  # no memory, for example: without this lane there is no ring
            done.wire.close()
            self.fail(JoinError(f"rank {self._rank} could not open a lane to rank {done.peer}: {error!r}"))
            return
        self._problems.solved(done.peer)
        self._missing.discard((done.peer, done.lane))
        self._check_complete()

    def _check_complete(self) -> None:
        for opened, lanes in [(self._outcome, self._missing), *self._openings.items()]:
            if not opened.done() and not lanes & self._missing:
                opened.set_result(None)

    def _missing_names(self) -> list[str]:
        turned_away = [self._refused.last] if self._refused.last else []
        return [self._described(peer) for peer in sorted({peer for peer, _ in self._missing})] + turned_away

    def _described(self, peer: int) -> str:
        problem = self._problems.of(peer) or ("" if peer < self._rank else "it has not called here yet")
        return f"rank {peer} ({self._addresses[peer]}" + (f"; {problem})" if problem else ")")

    async def _remind(self) -> None:
        """Log now and then which ranks are missing."""
        while True:
            await asyncio.sleep(REMIND_SECONDS)
            logger.warning("rank %d is waiting for %s", self._rank, ", ".join(self._missing_names()))


def _pairs(lanes: Mapping[int, Sequence[int]]) -> set[tuple[int, int]]:
    return {(peer, lane) for peer, indexes in lanes.items() for lane in indexes}


async def _end(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception) and not isinstance(outcome, JoinError):
            raise outcome
