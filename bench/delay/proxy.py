"""A delaying proxy, in a process of its own: `python -m bench.delay.proxy`, with its orders as one line on stdin.

It listens once for every address that it is given, says where in one line, and passes every connection on, each
direction through a `Flow`. It ends when stdin does, so it never outlives whoever started it.
"""

import asyncio
import json
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop

from bench.delay.flow import Flow, Line

LOOPBACK = "127.0.0.1"
BUFFER_BYTES = 1024 * 1024
"""Of the proxy's own sockets: enough not to hold anybody up, and beside the window it does not matter."""
PIECE_BYTES = 512 * 1024
"""Read or written at once."""
CONNECT_SECONDS, CONNECT_STEP_SECONDS = 10.0, 0.01


class Way:
    """One direction of one connection: reads when the window has room, writes what is due."""

    def __init__(self, source: socket.socket, target: socket.socket, flow: Flow, on_end: Callable[[], None]) -> None:
        self._source, self._target, self._flow, self._on_end = source, target, flow, on_end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._reading = self._writing = self._source_ended = False
        self.ended = self.broken = False
        self._step()

    def close(self) -> None:
        self.ended = True
        self._watch(reading=False, writing=False)
        if self._timer is not None:
            self._timer.cancel()

    def _step(self) -> None:
        try:
            full = self._take()
            stuck = self._give()
        except OSError:
            self.broken = True
            self._end()
            return
        if self._source_ended and self._flow.empty:
            with suppress(OSError):
                self._target.shutdown(socket.SHUT_WR)
            self._end()
            return
        self._watch(reading=not full and not self._source_ended, writing=stuck)
        moments = [self._flow.next_due(), self._flow.next_room() if full else None]
        self._wake_at(min((moment for moment in moments if moment is not None), default=None))

    def _take(self) -> bool:
        """Whatever has come, as long as the window lets it in. Is the window full?"""
        now = time.monotonic()
        while not self._source_ended:
            room = self._flow.room(now)[:PIECE_BYTES]
            if not room:
                return True
            try:
                count = self._source.recv_into(room)
            except (BlockingIOError, InterruptedError):
                return False
            if not count:
                self._source_ended = True
                break
            now = time.monotonic()  # it is on its way from here on
            self._flow.took(count, now)
            if count < len(room):
                break
        return False

    def _give(self) -> bool:
        """Whatever is due. Does the target not take it?"""
        while piece := self._flow.due(time.monotonic())[:PIECE_BYTES]:
            try:
                count = self._target.send(piece)
            except (BlockingIOError, InterruptedError):
                return True
            self._flow.gave(count, time.monotonic())
        return False

    def _watch(self, *, reading: bool, writing: bool) -> None:
        if reading != self._reading:
            self._reading = reading
            self._loop.add_reader(self._source, self._step) if reading else self._loop.remove_reader(self._source)
        if writing != self._writing:
            self._writing = writing
            self._loop.add_writer(self._target, self._step) if writing else self._loop.remove_writer(self._target)

    def _wake_at(self, moment: float | None) -> None:
        """A loop's timer may fire a little early: then nothing is due yet, and it is set again."""
        if moment is None or (self._timer is not None and self._timer_at <= moment):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_later(max(0.0, moment - time.monotonic()), self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._step()

    def _end(self) -> None:
        self.close()
        self._on_end()


class Proxy:
    """Before some addresses: what is said to each of them, and what it answers, comes late."""

    def __init__(self, *, round_trip_seconds: float, window_bytes: int, bytes_per_second: float | None = None) -> None:
        self._delay, self._window, self._rate = round_trip_seconds / 2, window_bytes, bytes_per_second
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, targets: Sequence[str], ports: Mapping[str, int] | None = None) -> list[str]:
        """Where to find these addresses, from now on: at these ports, or at any.

        Instead of an address it may be the path of a file that will have its port, when somebody knows it.
        """
        return [self._before(target, (ports or {}).get(target, 0)) for target in targets]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    def _before(self, target: str, port: int) -> str:
        listener = socket.create_server((LOOPBACK, port), backlog=1024)
        listener.setblocking(False)
        self._listeners.append(listener)
        lines = [None if self._rate is None else Line(self._rate) for _ in range(2)]  # one there, one back
        self._spawn(self._serve(listener, target, lines))
        return f"{LOOPBACK}:{listener.getsockname()[1]}"

    async def _serve(self, listener: socket.socket, target: str, lines: list[Line | None]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            dialing, _ = await loop.sock_accept(listener)
            self._spawn(self._connect(dialing, target, lines))

    async def _connect(self, dialing: socket.socket, target: str, lines: list[Line | None]) -> None:
        """Until both directions have ended, or this task is cancelled. Nobody there: the dialer sees an end."""
        over = asyncio.Event()
        ways: list[Way] = []
        with dialing, suppress(OSError), await _connected(target) as answering:
            for sock in (dialing, answering):
                _tune(sock)
            try:
                for (source, sink), line in zip([(dialing, answering), (answering, dialing)], lines, strict=True):
                    flow = Flow(delay_seconds=self._delay, window_bytes=self._window, line=line)
                    ways.append(Way(source, sink, flow, over.set))
                while not (all(way.ended for way in ways) or any(way.broken for way in ways)):
                    over.clear()
                    await over.wait()
            finally:
                for way in ways:
                    way.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _connected(target: str) -> socket.socket:
    """Ranks begin to listen in any order: whoever is not there yet is waited for, as the dialer itself would."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (LOOPBACK, _port_of(target)))
            return sock
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError) or time.monotonic() > deadline:
                raise
        await asyncio.sleep(CONNECT_STEP_SECONDS)


def _port_of(target: str) -> int:
    return int(Path(target).read_text() if target.startswith("/") else target.rpartition(":")[2])


def _tune(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)


async def main() -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    orders = json.loads(sys.stdin.readline())
    targets, ports = orders.pop("targets"), orders.pop("ports")
    proxy = Proxy(**orders)
    print(json.dumps(proxy.open(targets, ports)), flush=True)
    loop.add_reader(sys.stdin, over.set)  # nothing more is said: it becomes readable when it ends
    try:
        await over.wait()
    finally:
        await proxy.close()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        uvloop.run(main())
