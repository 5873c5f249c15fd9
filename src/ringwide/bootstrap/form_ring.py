"""The ranks find each other: everyone listens, the higher rank dials the lower, and both compare how they were started.

Every pair of ranks has an express lane, so that news (a rank is lost, ranks disagree) reaches everybody in one hop.
Bulk lanes are opened only between those who exchange bulk. Ranks may start in any order; whoever dials tries again
until the other is there or the start timeout is over. After the ring has formed the listener stays, and turns away.
"""

import asyncio
import functools
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringwide.bootstrap.accept import Acceptor, Strangers, leisure_after
from ringwide.bootstrap.dial import DialTarget, NoUnixSocket, connect, resolve
from ringwide.bootstrap.handshake import Handshaken, HandshakeTerms, Refused, answer, introduce
from ringwide.bootstrap.listen import unresolvable
from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.same_host import SameHost, is_here, why_not_ours
from ringwide.bootstrap.untrusted_connection import HungUp, UntrustedConnection, host_of
from ringwide.errors import ConfigError, JoinError, RemoteProtocolError, StartTimeout
from ringwide.protocol.handshake import Difference, Hello
from ringwide.protocol.key_proof import NONCE_BYTES
from ringwide.transport.sockets import Transport, transport_of
from ringwide.transport.tls import tls_handshake
from ringwide.transport.wire import PlainWire, Wire

logger = logging.getLogger("ringwide.bootstrap")

TOLD_OF_ONE_PEER = 4
"""So many different problems: who answers with nonsense finds a new one every time."""


class Problems:
    """By peer. Each problem is one warning, however often it is met."""

    def __init__(self) -> None:
        self._last: dict[int, str] = {}
        self._told: dict[int, set[str]] = {}

    def note(self, peer: int, address: object, problem: str) -> None:
        self._last[peer] = problem
        told = self._told.setdefault(peer, set())
        if problem not in told and len(told) < TOLD_OF_ONE_PEER:
            told.add(problem)
            logger.warning("rank %d at %s: %s", peer, address, problem)

    def solved(self, peer: int) -> None:
        self._last.pop(peer, None)

    def of(self, peer: int) -> str | None:
        return self._last.get(peer)


HANDSHAKE_SECONDS, ANSWER_SECONDS = 5.0, 20.0
"""A listener hears one that may be a stranger for so long; a dialer knows whom it wants, and waits for its turn."""
REMIND_SECONDS = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_TRIES_IN_VAIN = 3
"""So often in a row a peer may hang up before that is worth a line: it may just be starting, or ending."""

_OTHER_TLS = "was it started without tls, or with a certificate of another authority?"

OnLane = Callable[[int, int, Wire, bool], None]
"""on_lane(peer, lane, wire, sealed): a connection is ready."""


class RingFormation:
    """One rank's way into the ring."""

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
        self._missing = {(peer, lane) for peer, indexes in lanes.items() for lane in indexes}
        self._same_host = same_host
        self._not_by_unix: set[int] = set()  # who answers there is none of us
        self._problems = Problems()
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[None] = self._loop.create_future()
        self._strangers = Strangers(terms.rank, clock=self._loop.time)
        self._dearest_seconds = 0.0  # what a TLS handshake has cost this rank's processor, at most

    def fail(self, error: Exception) -> None:
        """Joining is over; `run` raises this."""
        if not self._outcome.done():
            self._outcome.set_exception(error)

    async def run(self, *, timeout_seconds: float) -> None:
        """Return when every connection is there."""
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._dial_peer(peer)) for peer in self._lanes if peer < self._rank
        ]
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

    async def serve(self, *listeners: socket.socket) -> None:
        """Accept connections for as long as this task runs."""
        reception = Acceptor(
            rank=self._rank, greet=self._greet, pause_seconds=self._pause_seconds, strangers=self._strangers
        )
        await reception.serve(*listeners)

    def _pause_seconds(self) -> float:
        return leisure_after(self._dearest_seconds) if self._outcome.done() else 0.0

    # -- the one that listens

    async def _greet(self, sock: socket.socket) -> None:
        """A stranger's bytes, or a connection that breaks, cost only that connection."""
        sock.setblocking(False)
        host, nonce = host_of(sock), os.urandom(NONCE_BYTES)
        if problem := why_not_ours(sock):
            sock.close()
            self._strangers.turned_away(host, problem)
            return
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                channel = UntrustedConnection(await self._wire(sock, dialed=False))
                judge = functools.partial(self._judge, host, transport_of(sock))
                outcome = await answer(channel, self._terms, judge=judge, nonce=nonce)
        except ConnectionAbortedError as error:
            sock.close()
            self._strangers.turned_away(host, f"{error}: {_OTHER_TLS}")
        except (OSError, TimeoutError, HungUp, MemoryError) as error:
            sock.close()
            self._strangers.gone(host, str(error) or f"it did not say who it is within {HANDSHAKE_SECONDS:g} s")
        except RemoteProtocolError as error:
            sock.close()
            self._strangers.turned_away(host, error)
        else:
            self._conclude(outcome, sock, host, dialed=False)

    def _judge(self, host: str, transport: Transport, theirs: Hello) -> Difference | None:
        if transport == "tcp" and self._same_host == "unix":
            return Difference("same_host", "tcp", "unix")
        return self._against_a_second(theirs.rank, theirs.lane, host)

    def _against_a_second(self, rank: int, lane: int, host: str) -> Difference | None:
        if (rank, lane) in self._missing:
            return None
        return Difference(
            "rank (each rank must be started once)",
            f"a second rank {rank} (from {host})",
            f"a rank {rank} that has joined already",
        )

    # -- the one that dials

    async def _dial_peer(self, peer: int) -> None:
        """All lanes to one peer, the express lane first: what the two disagree on is found before there are more."""
        for lane in self._lanes[peer]:
            pause, hung_up = _FIRST_PAUSE, 0
            while (peer, lane) in self._missing:  # it may be turned away in a crowd, or meet one that is about to end
                sock = await self._connect(peer)
                if sock is None:
                    return
                transport = transport_of(sock)
                hung_up = 0 if await self._meet(sock, peer, lane) else hung_up + 1
                if hung_up == _TRIES_IN_VAIN:
                    self._note_problem(peer, self._why_it_hangs_up())
                if (peer, lane) in self._missing:
                    if transport == "unix" and hung_up in (0, _TRIES_IN_VAIN):
                        self._not_by_unix.add(peer)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)

    async def _meet(self, sock: socket.socket, peer: int, lane: int) -> bool:
        """Was there an answer, of whatever kind? One that merely hangs up may be about to end, or to begin."""
        address, nonce = self._addresses[peer], os.urandom(NONCE_BYTES)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                channel = UntrustedConnection(await self._wire(sock, dialed=True))
                outcome = await introduce(channel, self._terms, peer=peer, address=address, lane=lane, nonce=nonce)
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
            self._note_problem(peer, f"no memory to meet it: {error}")
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
            return f"it hangs up: {_OTHER_TLS}"
        if self._terms.protection.secret is None:
            return "it hangs up without a word: was it started with key_file or tls, and this rank without?"
        return "it hangs up without a proof that it has our key: is it a rank of this ring, and of this version?"

    async def _connect(self, peer: int) -> socket.socket | None:
        pause, in_vain = _FIRST_PAUSE, 0
        while True:
            try:
                return await self._try_connect(peer)
            except NoUnixSocket as error:
                in_vain += 1
                if in_vain == _TRIES_IN_VAIN:  # it may have listened before it joined
                    self._note_problem(peer, str(error))
            except OSError as error:
                logger.debug("dial address=%s error=%s", self._addresses[peer], error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _try_connect(self, peer: int) -> socket.socket | None:
        place = await self._resolve(peer)
        if place is None:
            return None
        way: SameHost = "tcp" if self._same_host == "auto" and peer in self._not_by_unix else self._same_host
        return await connect(place, same_host=way, timeout_seconds=HANDSHAKE_SECONDS)

    async def _resolve(self, peer: int) -> DialTarget | None:
        """A name that nobody here dials must be right all the same: a rank that waits for it would wait in vain."""
        address = self._addresses[peer]
        try:
            place = await resolve(address)
        except (socket.gaierror, UnicodeError) as error:
            self.fail(unresolvable(address, error))
            return None
        if self._same_host == "unix" and not is_here(*place):
            self.fail(
                ConfigError(
                    f"same_host: unix, but rank {peer} ({address}) is not on this machine; "
                    "use same_host: auto, which takes TCP to ranks elsewhere"
                )
            )
            return None
        return place

    # -- both

    async def _wire(self, sock: socket.socket, *, dialed: bool) -> Wire:
        tls = self._terms.protection.tls
        if tls is None:
            return PlainWire(sock)
        context = tls.dialing if dialed else tls.listening
        return await tls_handshake(sock, context, server_side=not dialed, on_cost=self._note_cost)

    def _note_cost(self, seconds: float) -> None:
        self._dearest_seconds = max(self._dearest_seconds, seconds)

    def _conclude(self, outcome: Handshaken | Refused, sock: socket.socket, host: str, *, dialed: bool) -> None:
        if isinstance(outcome, Handshaken):
            # Again: while two hand each other memory, another of the same rank may have come, and be here already.
            difference = self._against_a_second(outcome.peer, outcome.lane, host)
            if difference is None:
                self._arrived(outcome)
                return
            outcome.wire.close()
            outcome = Refused(f"rank {outcome.peer}", difference)
        sock.close()
        error = outcome.difference.as_error(rank=self._rank, peer=outcome.peer, dialed=dialed)
        if self._outcome.done():
            self._strangers.turned_away(host, error)
        self.fail(error)

    def _arrived(self, met: Handshaken) -> None:
        try:
            self._on_lane(met.peer, met.lane, met.wire, met.sealed)
        except Exception as error:  # no memory, for example: without this lane there is no ring
            met.wire.close()
            self.fail(JoinError(f"rank {self._rank} could not open a lane to rank {met.peer}: {error!r}"))
            return
        self._problems.solved(met.peer)
        self._missing.discard((met.peer, met.lane))
        self._check_complete()

    def _check_complete(self) -> None:
        if not self._missing and not self._outcome.done():
            self._outcome.set_result(None)

    def _missing_names(self) -> list[str]:
        return [self._described(peer) for peer in sorted({peer for peer, _ in self._missing})]

    def _described(self, peer: int) -> str:
        problem = self._problems.of(peer)
        return f"rank {peer} ({self._addresses[peer]}" + (f"; {problem})" if problem else ")")

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(REMIND_SECONDS)
            logger.warning("rank %d is waiting for %s", self._rank, ", ".join(self._missing_names()))


async def _end(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception) and not isinstance(outcome, JoinError):
            raise outcome
