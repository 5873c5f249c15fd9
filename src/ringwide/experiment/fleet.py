"""Fleet of nodes: all started together, asked to stop together, and none left behind."""

import asyncio
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from ringwide.errors import CollectiveError, PeerLost, RingwideError
from ringwide.experiment.forkserver import Child, Task, fork
from ringwide.experiment.stop_signals import ENDED_BY_SIGNAL, SIGNALS, StopSignals, until_any


@dataclass(frozen=True, slots=True)
class Exit:
    """End of a node. A negative code is the signal that killed it, as in `subprocess`."""

    rank: int
    code: int
    last_lines: tuple[str, ...]
    host: str = ""  # where there are several
    description: str = ""  # how it ended, if there is more to say than its code

    def __str__(self) -> str:
        who = f"node {self.rank} on {self.host}" if self.host else f"node {self.rank}"
        if self.description:
            return f"{who} {self.description}"
        if self.code >= 0:
            return f"{who} ended with exit code {self.code}"
        return f"{who} was killed by {name_of_signal(-self.code)}"


class NodeHandle(Protocol):
    """Node that was started."""

    @property
    def rank(self) -> int: ...

    @property
    def ended(self) -> "asyncio.Future[Exit]": ...

    def signal(self, number: int) -> None:
        """No effect on a node that has ended."""


class StartNode(Protocol):
    """Recipe for starting one node."""

    async def start(self, rank: int, on_line: Callable[[str], None]) -> NodeHandle:
        """Pass each line of standard output to `on_line`. If that raises, the node is killed and `ended` raises it."""
        ...


def name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


GRACE_SECONDS = 1.0
TERMINATE_SECONDS = 2.0
STOP_SECONDS = 30.0
CONSEQUENCES = {PeerLost.exit_code, CollectiveError.exit_code}
SIGNAL_OF_CODE = {ENDED_BY_SIGNAL + number: int(number) for number in SIGNALS}


class NodeFailed(RingwideError):
    """A node ended with an error; the others were ended."""

    def __init__(self, exit: Exit) -> None:
        output = "".join(f"\n    {line}" for line in exit.last_lines)
        said = f"Its last lines:{output}" if output else "It printed no error."
        super().__init__(f"{exit}; the others were ended. {said}")
        self.rank, self.last_lines, self.reason = exit.rank, exit.last_lines, str(exit)
        self.exit_code = max(exit.code, 1)


@dataclass(frozen=True, slots=True)
class FleetEnding:
    """End of a fleet without a failure. `signal` asked it to stop; 0 means that it ran to completion."""

    exits: tuple[Exit, ...]
    signal: int = 0
    trouble: str = ""  # nodes that did not stop as asked


async def run_fleet(
    starts: Sequence[StartNode],
    on_line: Callable[[int, str], None],
    *,
    stop: StopSignals | None = None,
    can_stop: Callable[[], bool] = lambda: True,
    patience_seconds: float = 0.0,
) -> FleetEnding:
    """Run one node for each rank until all have exited with code 0. Whatever happens, no process is left.

    `can_stop` tells whether the nodes can stop cleanly when asked. Before that they are just ended.
    `patience_seconds`: how long to wait for the node that failed first, once others have reported it lost.
    """
    nodes: list[NodeHandle] = []
    stop = stop or StopSignals()
    try:
        for rank, each in enumerate(starts):
            if stop.asked.done():
                return FleetEnding(_exits(nodes), stop.asked.result())
            nodes.append(await each.start(rank, partial(on_line, rank)))
        if await _until_ended_or_asked(nodes, stop, patience_seconds):
            return FleetEnding(_exits(nodes))
        trouble = await _stop(nodes, stop) if can_stop() else ""
        return FleetEnding(_exits(nodes), stop.asked.result(), trouble)
    finally:
        await _end_all(nodes)


def culprit(failed: Sequence[Exit]) -> Exit:
    """Node to blame. One that lost a peer often ends before that peer does, so it is named last."""
    return next((exit for exit in failed if exit.code not in CONSEQUENCES), failed[0])


async def _until_ended_or_asked(nodes: Sequence[NodeHandle], stop: StopSignals, patience: float) -> bool:
    """True if all nodes have exited with code 0; False if a signal asks them to stop, here or at one of the nodes."""
    running = {node.ended for node in nodes}
    while running and not stop.asked.done():
        await until_any(*running, stop.asked)
        ended = {ending for ending in running if ending.done()}
        running -= ended
        for exit in sorted((ending.result() for ending in ended), key=lambda exit: exit.rank):
            if exit.code in SIGNAL_OF_CODE:
                stop.ask(SIGNAL_OF_CODE[exit.code])  # that node got the signal
            elif exit.code != 0:
                await _wait(running, GRACE_SECONDS)
                raise NodeFailed(await _culprit(exit, nodes, patience))
    return not stop.asked.done()


async def _culprit(first: Exit, nodes: Sequence[NodeHandle], patience: float) -> Exit:
    """Node to blame. While every node that ended has only lost a peer, wait for the one that was lost."""
    deadline = time.monotonic() + patience
    while (found := culprit(_failed(first, nodes))).code in CONSEQUENCES:
        running = [node.ended for node in nodes if not node.ended.done()]
        left = deadline - time.monotonic()
        if not running or left <= 0:
            break
        await until_any(*running, seconds=left)
    return found


def _failed(first: Exit, nodes: Sequence[NodeHandle]) -> list[Exit]:
    return [first, *(exit for exit in _exits(nodes) if exit.code != 0 and exit != first)]


async def _stop(nodes: Sequence[NodeHandle], stop: StopSignals) -> str:
    """Signal every node once, then wait. Returns which nodes did not stop cleanly."""
    number = stop.asked.result()
    # A node that ended with this signal's code got it from elsewhere, and has agreed on a stop with its peers.
    if not any(exit.code == ENDED_BY_SIGNAL + number for exit in _exits(nodes)):
        for node in nodes:
            node.signal(number)
    everyone = asyncio.ensure_future(asyncio.wait([node.ended for node in nodes]))
    await until_any(everyone, stop.insisted, seconds=STOP_SECONDS)
    everyone.cancel()
    late = [node for node in nodes if not node.ended.done()]
    for node in late:
        node.signal(signal.SIGKILL)
    return "; ".join([*(f"node {node.rank} did not stop and was killed" for node in late), *_odd(nodes, number)])


def _odd(nodes: Sequence[NodeHandle], number: int) -> list[str]:
    return [str(exit) for exit in _exits(nodes) if exit.code not in (0, ENDED_BY_SIGNAL + number, -number)]


def _exits(nodes: Sequence[NodeHandle]) -> tuple[Exit, ...]:
    return tuple(node.ended.result() for node in nodes if node.ended.done())


async def _end_all(nodes: Sequence[NodeHandle]) -> None:
    endings = [node.ended for node in nodes]
    try:
        for node in nodes:
            node.signal(signal.SIGTERM)
        await _wait(endings, TERMINATE_SECONDS)
    finally:
        # Also reached when this is cancelled in turn.
        for node in nodes:
            node.signal(signal.SIGKILL)
    await _wait(endings, TERMINATE_SECONDS)
    for ending in endings:
        if ending.done() and not ending.cancelled():
            ending.exception()  # retrieved, so that asyncio does not log it


async def _wait(endings: Collection["asyncio.Future[Exit]"], seconds: float) -> None:
    if endings:
        await asyncio.wait(endings, timeout=seconds)


# -- node as a child process

LAST_LINES = 20
LONGEST_LINE = 1024 * 1024


class ProcessOutput:
    """Standard error of a node: the last lines in memory, all of them in a file that exists only if there are any."""

    def __init__(self, log: Path | None) -> None:
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._log = log

    def __call__(self, line: str) -> None:
        self.last.append(line)
        if self._log is not None:
            try:
                with self._log.open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
            except OSError:  # a full disk, for example: no reason to end the node
                self._log = None


async def each_line(stream: asyncio.StreamReader, then: Callable[[str], None]) -> None:
    async for line in lines_of(stream):
        then(line)


async def lines_of(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines of the stream. Unlike its own iterator, this cuts an overlong line instead of raising."""
    rest = b""
    while chunk := await stream.read(LONGEST_LINE):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        rest = rest[-LONGEST_LINE:]
    if rest:
        yield rest.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Command:
    """Task to fork as a node, and the file for its standard error, if any."""

    task: Task
    error_log: Path | None = None

    async def start(self, rank: int, on_line: Callable[[str], None]) -> "NodeProcess":
        return NodeProcess(rank, await fork(self.task), on_line, self.error_log)


class NodeProcess:
    def __init__(self, rank: int, child: Child, on_line: Callable[[str], None], error_log: Path | None) -> None:
        self.rank = rank
        self._child = child
        self._errors = ProcessOutput(error_log)
        self._ended = asyncio.ensure_future(self._watch(on_line))

    @property
    def ended(self) -> "asyncio.Future[Exit]":
        return self._ended

    async def _watch(self, on_line: Callable[[str], None]) -> Exit:
        try:
            # Not a TaskGroup: an exception of `on_line` must arrive as it is, not in a group.
            await asyncio.gather(each_line(self._child.output, on_line), each_line(self._child.errors, self._errors))
        except Exception:
            self.signal(signal.SIGKILL)  # nobody listens any more
            await self._child.wait()
            raise
        finally:
            self._child.close()
        return Exit(self.rank, await self._child.wait(), tuple(self._errors.last))

    def signal(self, number: int) -> None:
        self._child.signal(number)
