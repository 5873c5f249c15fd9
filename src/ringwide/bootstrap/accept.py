"""Accepting connections, and limiting those that have not yet shown who they are.

Rules:
- The number of pending connections is bounded, and so is their time: unknown clients cost a bounded number of sockets,
  whatever they do.
- When the limit is reached, a new connection replaces the oldest that has said nothing for `GRACE_SECONDS`: a rank
  speaks as soon as it is connected. One whose last message was valid is replaced only if there is none such, and after
  `ANSWERED_GRACE_SECONDS`, which is several round trips around the world. So unknown clients that hold all places keep
  no rank out, however far away it is, and ranks that come all at once do not replace each other.
- When all ranks are here, there is no hurry: new connections wait in the kernel, where they cost nothing. The costlier
  a handshake is, the longer they wait, so unknown clients get a small share of this rank's time.
- An exception in a handshake costs that connection, and a line in the log as for other refused connections.
"""

import asyncio
import logging
import socket
import traceback
from collections import deque
from collections.abc import Callable, Coroutine

from ringwide.bootstrap.untrusted_connection import host_of, until_readable

logger = logging.getLogger("ringwide.bootstrap")

ADDRESSES_REMEMBERED = 32
QUIET_SECONDS = 10.0
PENDING_LIMIT = 64
GRACE_SECONDS, ANSWERED_GRACE_SECONDS = 0.25, 2.0
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.02, 1.0
PAUSE_PER_COST = 20
_RETRY_SECONDS = 0.5

OnAnswer = Callable[[], None]
"""Called whenever the other end has sent a valid message, which does not mean that it can be trusted."""
Handshake = Callable[[socket.socket, OnAnswer], Coroutine[None, None, None]]
"""Finds out who it is, and closes the socket unless it is a rank of this ring."""
_Pending = dict["asyncio.Task[None]", float]


class RefusedConnections:
    """Log of refused connections: one warning per address, up to a limit. The rest is counted and summed up."""

    def __init__(self, rank: int, *, clock: Callable[[], float]) -> None:
        self._rank, self._clock = rank, clock
        self._warned: set[str] = set()
        self.last = ""  # for whoever asks why nobody comes
        self._unreported = 0
        self._reported_at = float("-inf")

    def refused(self, host: str, reason: object) -> None:
        """Note a connection with a reason that its owner should know."""
        self.last = f"somebody at {host or 'an unknown address'} who was turned away: {reason}"
        if host in self._warned or len(self._warned) >= ADDRESSES_REMEMBERED:
            self.ended(host, reason)
            return
        self._warned.add(host)
        logger.warning("rank %d turned away a connection from %s: %s", self._rank, host, reason)

    def ended(self, host: str, reason: object) -> None:
        """Note a connection that just ended: a port scan, or a peer that was stopped."""
        self._unreported += 1
        if self._clock() - self._reported_at < QUIET_SECONDS:
            return
        logger.info(
            "rank=%d connections_ended=%d last_from=%s reason=%s",
            self._rank,
            self._unreported,
            host or "unknown",
            reason,
        )
        self._unreported, self._reported_at = 0, self._clock()


def pause_after(cost_seconds: float) -> float:
    """Pause before the next connection is accepted, if a handshake costs so much of this rank's time."""
    return max(PAUSE_SECONDS, min(PAUSE_PER_COST * cost_seconds, LONGEST_PAUSE_SECONDS))


class Acceptor:
    """Accepts connections, and keeps the number of pending ones bounded.

    `pause_seconds` returns the pause before the next connection is accepted.
    """

    def __init__(
        self, *, rank: int, handshake: Handshake, pause_seconds: Callable[[], float], refused: RefusedConnections
    ) -> None:
        self._rank, self._handshake = rank, handshake
        self._pause_seconds, self._refused = pause_seconds, refused
        self._loop = asyncio.get_running_loop()
        # Handshakes, the oldest first: those that have said nothing valid, and when they began; the others, and when
        # their last valid message came.
        self._silent: _Pending = {}
        self._answering: _Pending = {}
        self._evicted: set[asyncio.Task[None]] = set()

    async def serve(self, *listeners: socket.socket) -> None:
        """Accept connections as long as this task runs. One limit holds for all listeners together."""
        taking_turns = deque(listeners)
        try:
            while True:
                await self._until_there_is_room()
                sock = await self._accept(taking_turns)
                self._evict()
                self._start(sock)
                await asyncio.sleep(self._pause_seconds())
        finally:
            await self._close()

    @property
    def _pending(self) -> "list[asyncio.Task[None]]":
        return [*self._silent, *self._answering]

    async def _until_there_is_room(self) -> None:
        while len(pending := self._pending) >= PENDING_LIMIT:
            grace = min(left for _, left in self._replaceable())
            if grace <= 0:
                return
            await asyncio.wait(pending, timeout=grace, return_when=asyncio.FIRST_COMPLETED)

    def _replaceable(self) -> "list[tuple[asyncio.Task[None], float]]":
        """The oldest handshake that is silent, then the oldest that is not, each with the seconds left to it."""
        now, kinds = self._loop.time(), ((self._silent, GRACE_SECONDS), (self._answering, ANSWERED_GRACE_SECONDS))
        return [(next(iter(kind)), next(iter(kind.values())) + grace - now) for kind, grace in kinds if kind]

    async def _accept(self, listeners: deque[socket.socket]) -> socket.socket:
        while True:
            try:
                if (sock := _accept_next(listeners)) is not None:
                    return sock
                await until_readable(*listeners)  # not `sock_accept`: cancelled at the wrong moment, it loses a socket
            except OSError as error:  # out of descriptors, for example: that may pass
                logger.warning("rank %d cannot accept a connection: %s", self._rank, error)
                await asyncio.sleep(_RETRY_SECONDS)

    def _evict(self) -> None:
        while len(self._pending) >= PENDING_LIMIT:
            # Nobody's grace is over only if the one that was to go has just spoken.
            replaceable = self._replaceable()
            task = next((task for task, left in replaceable if left <= 0), replaceable[0][0])
            self._remove(task)
            self._evicted.add(task)
            task.cancel()

    def _start(self, sock: socket.socket) -> None:
        task, host = asyncio.create_task(self._handshake(sock, lambda: self._answered(task))), host_of(sock)
        self._silent[task] = self._loop.time()
        task.add_done_callback(lambda task: self._forget(task, sock, host))

    def _answered(self, task: "asyncio.Task[None]") -> None:
        if task not in self._evicted:
            self._remove(task)
            self._answering[task] = self._loop.time()

    def _remove(self, task: "asyncio.Task[None]") -> None:
        self._silent.pop(task, None)
        self._answering.pop(task, None)

    def _forget(self, task: "asyncio.Task[None]", sock: socket.socket, host: str) -> None:
        self._remove(task)
        self._evicted.discard(task)
        if task.cancelled():  # perhaps before it began
            sock.close()
        elif error := task.exception():
            sock.close()
            self._refused.refused(host, f"an internal error, {error!r}{_location(error)}")

    async def _close(self) -> None:
        tasks = [*self._pending, *self._evicted]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # `_forget` reports exceptions


def _accept_next(listeners: deque[socket.socket]) -> socket.socket | None:
    """The next connection of any listener. They take turns, so many connections at one do not block another."""
    for _ in range(len(listeners)):
        listeners.rotate(-1)
        try:
            return listeners[-1].accept()[0]
        except (BlockingIOError, InterruptedError):
            continue
    return None


def _location(error: BaseException) -> str:
    """File and line of an exception: a traceback for every connection would be too long."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
