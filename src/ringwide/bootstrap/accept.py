"""Where those wait who have connected and not yet shown who they are.

Rules:
- There are few places, and nobody stays long: strangers cost a bounded number of sockets, whatever they do.
- When all places are taken, whoever has been here longest goes as soon as somebody else comes. But each gets
  `GRACE_SECONDS` first, which is more than a rank needs: so strangers that hold all places keep no rank out, and a
  crowd of ranks does not push each other away.
- When nobody is awaited any more, there is no hurry: the others wait in the kernel, where they cost nothing. The dearer
  a greeting is, the longer they wait: strangers get a small share of this rank's time.
- A mistake in how somebody is greeted costs the connection, and a line as for other strangers.
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


class Strangers:
    """One warning for each address, up to a number of addresses; the rest is counted, and told now and then."""

    def __init__(self, rank: int, *, clock: Callable[[], float]) -> None:
        self._rank, self._clock = rank, clock
        self._warned: set[str] = set()
        self._untold = 0
        self._told_at = float("-inf")

    def turned_away(self, host: str, reason: object) -> None:
        """Somebody with a reason that its owner should know of."""
        if host in self._warned or len(self._warned) >= ADDRESSES_REMEMBERED:
            self.gone(host, reason)
            return
        self._warned.add(host)
        logger.warning("rank %d turned away a connection from %s: %s", self._rank, host, reason)

    def gone(self, host: str, reason: object) -> None:
        """Somebody who went by: a port scan, a peer that was stopped, one of a crowd."""
        self._untold += 1
        if self._clock() - self._told_at < QUIET_SECONDS:
            return
        logger.info(
            "rank=%d connections_ended=%d last_from=%s reason=%s", self._rank, self._untold, host or "somebody", reason
        )
        self._untold, self._told_at = 0, self._clock()


PLACES = 64
GRACE_SECONDS = 0.25
LEISURE_SECONDS, LONGEST_LEISURE_SECONDS = 0.02, 1.0
TIMES_THE_COST = 20
_PAUSE_SECONDS = 0.5

Greet = Callable[[socket.socket], Coroutine[None, None, None]]
"""Finds out who it is, and closes the socket unless it is one of us."""


def leisure_after(cost_seconds: float) -> float:
    """How long to wait before the next is accepted, if a greeting costs so much of this rank's time."""
    return max(LEISURE_SECONDS, min(TIMES_THE_COST * cost_seconds, LONGEST_LEISURE_SECONDS))


class Acceptor:
    """Accepts connections, and sees to it that they do not become too many.

    `pause_seconds` says how long to wait for the next after one has come.
    """

    def __init__(self, *, rank: int, greet: Greet, pause_seconds: Callable[[], float], strangers: Strangers) -> None:
        self._rank, self._greet = rank, greet
        self._pause_seconds, self._strangers = pause_seconds, strangers
        self._loop = asyncio.get_running_loop()
        self._guests: dict[asyncio.Task[None], float] = {}  # since when; the oldest is the first
        self._leaving: set[asyncio.Task[None]] = set()

    async def serve(self, *listeners: socket.socket) -> None:
        """Accept connections for as long as this task runs. Whoever comes by one or the other has the same places."""
        taking_turns = deque(listeners)
        try:
            while True:
                await self._until_somebody_may_come()
                sock = await self._accept(taking_turns)
                self._make_room()
                self._seat(sock)
                await asyncio.sleep(self._pause_seconds())
        finally:
            await self._close()

    async def _until_somebody_may_come(self) -> None:
        while len(self._guests) >= PLACES:
            grace = next(iter(self._guests.values())) + GRACE_SECONDS - self._loop.time()
            if grace <= 0:
                return
            await asyncio.wait(self._guests, timeout=grace, return_when=asyncio.FIRST_COMPLETED)

    async def _accept(self, listeners: deque[socket.socket]) -> socket.socket:
        while True:
            try:
                if (sock := _who_waits(listeners)) is not None:
                    return sock
                await until_readable(*listeners)  # not `sock_accept`: cancelled at the wrong moment, it loses a socket
            except OSError as error:  # out of descriptors, for example: that may pass
                logger.warning("rank %d cannot accept a connection: %s", self._rank, error)
                await asyncio.sleep(_PAUSE_SECONDS)

    def _make_room(self) -> None:
        while len(self._guests) >= PLACES:
            oldest = next(iter(self._guests))
            del self._guests[oldest]
            self._leaving.add(oldest)
            oldest.cancel()

    def _seat(self, sock: socket.socket) -> None:
        task, host = asyncio.create_task(self._greet(sock)), host_of(sock)
        self._guests[task] = self._loop.time()
        task.add_done_callback(lambda task: self._forget(task, sock, host))

    def _forget(self, task: "asyncio.Task[None]", sock: socket.socket, host: str) -> None:
        self._guests.pop(task, None)
        self._leaving.discard(task)
        if task.cancelled():  # perhaps before it had begun
            sock.close()
        elif error := task.exception():
            sock.close()
            self._strangers.turned_away(host, f"a mistake of this program, {error!r}{_place(error)}")

    async def _close(self) -> None:
        tasks = [*self._guests, *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # a mistake among them is told by `_forget`


def _who_waits(listeners: deque[socket.socket]) -> socket.socket | None:
    """The next at any door. They take turns: a crowd at one keeps nobody out at another."""
    for _ in range(len(listeners)):
        listeners.rotate(-1)
        try:
            return listeners[-1].accept()[0]
        except (BlockingIOError, InterruptedError):
            continue
    return None


def _place(error: BaseException) -> str:
    """Where it happened, in few words: a traceback for every stranger would be many lines."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
