"""All nodes of an experiment: started together, asked to stop together, and none left behind."""

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
    """How a node ended. A negative code is the signal that killed it, as in `subprocess`."""

    rank: int
    code: int
    last_words: tuple[str, ...]
    where: str = ""  # the host, where there are several
    fate: str = ""  # what became of it, if there is more to say than its code

    def __str__(self) -> str:
        who = f"node {self.rank} on {self.where}" if self.where else f"node {self.rank}"
        if self.fate:
            return f"{who} {self.fate}"
        if self.code >= 0:
            return f"{who} ended with exit code {self.code}"
        return f"{who} was killed by {name_of_signal(-self.code)}"


class NodeHandle(Protocol):
    """One node that was started."""

    @property
    def rank(self) -> int: ...

    @property
    def ended(self) -> "asyncio.Future[Exit]": ...

    def signal(self, number: int) -> None:
        """Does nothing to one that has ended."""


class StartNode(Protocol):
    """What is needed to start one node."""

    async def start(self, rank: int, on_line: Callable[[str], None]) -> NodeHandle:
        """`on_line` hears what the node says on standard output; what it raises ends the node, and is how it ends."""
        ...


def name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for real-time use have no names
        return f"signal {number}"


GRACE_SECONDS = 1.0
TERMINATE_SECONDS = 2.0
STOP_SECONDS = 30.0
CONSEQUENCES = {PeerLost.exit_code, CollectiveError.exit_code}
SIGNAL_OF_CODE = {ENDED_BY_SIGNAL + number: int(number) for number in SIGNALS}


class NodeFailed(RingwideError):
    """A node ended with an error; the others were ended."""

    def __init__(self, exit: Exit) -> None:
        words = "".join(f"\n    {line}" for line in exit.last_words)
        super().__init__(f"{exit}; the others were ended. {'Its last words:' if words else 'It said nothing.'}{words}")
        self.rank, self.last_words, self.reason = exit.rank, exit.last_words, str(exit)
        self.exit_code = max(exit.code, 1)


@dataclass(frozen=True, slots=True)
class FleetEnding:
    """How a fleet ended without a failure. `signal`: what it was asked by to stop; 0: it came to its own end."""

    exits: tuple[Exit, ...]
    signal: int = 0
    trouble: str = ""  # who did not stop as asked


async def run_fleet(
    starts: Sequence[StartNode],
    on_line: Callable[[int, str], None],
    *,
    halt: StopSignals | None = None,
    can_stop: Callable[[], bool] = lambda: True,
    patience_seconds: float = 0.0,
) -> FleetEnding:
    """Run one node for each rank until all have ended well. Whatever happens, no process is left.

    `can_stop` tells whether the nodes have come so far that they end well when asked; before that they are just ended.
    `patience_seconds`: how much later it may be known that a node is gone than that others have lost it.
    """
    nodes: list[NodeHandle] = []
    halt = halt or StopSignals()
    try:
        for rank, each in enumerate(starts):
            if halt.asked.done():
                return FleetEnding(_exits(nodes), halt.asked.result())
            nodes.append(await each.start(rank, partial(on_line, rank)))
        if await _until_ended_or_asked(nodes, halt, patience_seconds):
            return FleetEnding(_exits(nodes))
        trouble = await _stop(nodes, halt) if can_stop() else ""
        return FleetEnding(_exits(nodes), halt.asked.result(), trouble)
    finally:
        await _end_all(nodes)


def culprit(failed: Sequence[Exit]) -> Exit:
    """Who failed first. A node that lost a peer often ends before that peer does, so those are named last."""
    return next((exit for exit in failed if exit.code not in CONSEQUENCES), failed[0])


async def _until_ended_or_asked(nodes: Sequence[NodeHandle], halt: StopSignals, patience: float) -> bool:
    """True: all nodes have ended well. False: they are to stop, because a person or one of the nodes said so."""
    running = {node.ended for node in nodes}
    while running and not halt.asked.done():
        await until_any(*running, halt.asked)
        ended = {ending for ending in running if ending.done()}
        running -= ended
        for exit in sorted((ending.result() for ending in ended), key=lambda exit: exit.rank):
            if exit.code in SIGNAL_OF_CODE:
                halt.ask(SIGNAL_OF_CODE[exit.code])  # somebody has asked that node
            elif exit.code != 0:
                await _wait(running, GRACE_SECONDS)
                raise NodeFailed(await _culprit(exit, nodes, patience))
    return not halt.asked.done()


async def _culprit(first: Exit, nodes: Sequence[NodeHandle], patience: float) -> Exit:
    """Who failed, waited for if all who have ended have only lost a peer."""
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


async def _stop(nodes: Sequence[NodeHandle], halt: StopSignals) -> str:
    """Ask every node once, then wait. Returns what did not go well."""
    number = halt.asked.result()
    # A node that has ended so was asked by somebody else, and has agreed with the others before.
    if not any(exit.code == ENDED_BY_SIGNAL + number for exit in _exits(nodes)):
        for node in nodes:
            node.signal(number)
    everyone = asyncio.ensure_future(asyncio.wait([node.ended for node in nodes]))
    await until_any(everyone, halt.insisted, seconds=STOP_SECONDS)
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
            ending.exception()  # known already, or the same as another's: asyncio need not complain


async def _wait(endings: Collection["asyncio.Future[Exit]"], seconds: float) -> None:
    if endings:
        await asyncio.wait(endings, timeout=seconds)


# One node as a child process: its lines, its last words, its end.

LAST_WORDS = 20
LONGEST_LINE = 1024 * 1024


class ProcessOutput:
    """What a node said on standard error: the last of it here, all of it in a file, which exists only if it spoke."""

    def __init__(self, log: Path | None) -> None:
        self.last: deque[str] = deque(maxlen=LAST_WORDS)
        self._log = log

    def __call__(self, line: str) -> None:
        self.last.append(line)
        if self._log is not None:
            try:
                with self._log.open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
            except OSError:  # a full disk, for example: no reason to end a node that only said something
                self._log = None


async def each_line(stream: asyncio.StreamReader, then: Callable[[str], None]) -> None:
    async for line in lines_of(stream):
        then(line)


async def lines_of(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Like iterating the stream, but a line that never ends is cut instead of raising."""
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
    """What to start, and where its standard error is kept, if anywhere."""

    task: Task
    error_log: Path | None = None

    async def start(self, rank: int, on_line: Callable[[str], None]) -> "NodeProcess":
        return NodeProcess(rank, await fork(self.task), on_line, self.error_log)


class NodeProcess:
    def __init__(self, rank: int, child: Child, on_line: Callable[[str], None], error_log: Path | None) -> None:
        self.rank = rank
        self._child = child
        self._words = ProcessOutput(error_log)
        self._ended = asyncio.ensure_future(self._watch(on_line))

    @property
    def ended(self) -> "asyncio.Future[Exit]":
        return self._ended

    async def _watch(self, on_line: Callable[[str], None]) -> Exit:
        try:
            # Not a TaskGroup: what a listener raises is to arrive as it is, not in a group.
            await asyncio.gather(each_line(self._child.output, on_line), each_line(self._child.errors, self._words))
        except Exception:
            self.signal(signal.SIGKILL)  # nobody listens any more
            await self._child.wait()
            raise
        finally:
            self._child.close()
        return Exit(self.rank, await self._child.wait(), tuple(self._words.last))

    def signal(self, number: int) -> None:
        self._child.signal(number)
