"""One node as a child process: its lines, its last words, its end."""

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from ringwide.experiment.fleet import Exit
from ringwide.experiment.forkserver import Child, Task, fork

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
