"""Accepting connections, and limiting those that have not yet shown who they are.

Rules:
- The number of pending connections is bounded, and so is their time: unknown clients cost a bounded number of sockets,
  whatever they do.
- When the limit is reached, a new connection replaces the oldest. But each gets `GRACE_SECONDS` first, which is more
  than a rank needs. So unknown clients that hold all of them keep no rank out, and ranks that come all at once do not
  replace each other.
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
GRACE_SECONDS = 0.25
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.02, 1.0
PAUSE_PER_COST = 20
_RETRY_SECONDS = 0.5

Handshake = Callable[[socket.socket], Coroutine[None, None, None]]
"""Finds out who it is, and closes the socket unless it is a rank of this ring."""


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
        self._pending: dict[asyncio.Task[None], float] = {}  # handshakes and when they began, the oldest first
        self._evicted: set[asyncio.Task[None]] = set()

    async def serve(self, *listeners: socket.socket) -> None:
        """Accept connections as long as this task runs. One limit holds for all listeners together."""
        taking_turns = deque(listeners)
        try:
            while True:
                await self._until_there_is_room()
                sock = await self._accept(taking_turns)
                self._evict_oldest()
                self._start(sock)
                await asyncio.sleep(self._pause_seconds())
        finally:
            await self._close()

    async def _until_there_is_room(self) -> None:
        while len(self._pending) >= PENDING_LIMIT:
            grace = next(iter(self._pending.values())) + GRACE_SECONDS - self._loop.time()
            if grace <= 0:
                return
            await asyncio.wait(self._pending, timeout=grace, return_when=asyncio.FIRST_COMPLETED)

    async def _accept(self, listeners: deque[socket.socket]) -> socket.socket:
        while True:
            try:
                if (sock := _accept_next(listeners)) is not None:
                    return sock
                await until_readable(*listeners)  # not `sock_accept`: cancelled at the wrong moment, it loses a socket
            except OSError as error:  # out of descriptors, for example: that may pass
                logger.warning("rank %d cannot accept a connection: %s", self._rank, error)
                await asyncio.sleep(_RETRY_SECONDS)

    def _evict_oldest(self) -> None:
        while len(self._pending) >= PENDING_LIMIT:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            self._evicted.add(oldest)
            oldest.cancel()

    def _start(self, sock: socket.socket) -> None:
        task, host = asyncio.create_task(self._handshake(sock)), host_of(sock)
        self._pending[task] = self._loop.time()
        task.add_done_callback(lambda task: self._forget(task, sock, host))

    def _forget(self, task: "asyncio.Task[None]", sock: socket.socket, host: str) -> None:
        self._pending.pop(task, None)
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
