"""One node as a child process: its lines, its last words, its end."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

LAST_WORDS = 20
LONGEST_LINE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Exit:
    """How a node ended. A negative code is the signal that killed it, as in `subprocess`."""

    rank: int
    code: int
    last_words: tuple[str, ...]

    def __str__(self) -> str:
        if self.code >= 0:
            return f"node {self.rank} ended with exit code {self.code}"
        return f"node {self.rank} was killed by {signal.Signals(-self.code).name}"


class NodeProcess:
    def __init__(self, rank: int, process: asyncio.subprocess.Process, on_line: Callable[[str], None]) -> None:
        self.rank = rank
        self._process = process
        self._last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._ended = asyncio.ensure_future(self._watch(on_line))

    @classmethod
    async def start(cls, rank: int, command: Sequence[str], on_line: Callable[[str], None]) -> "NodeProcess":
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Ctrl-C goes to every process of a session's foreground group; only the launcher is to hear it.
            start_new_session=True,
            # Each node computes on one thread; without this, importing torch starts one for every core.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return cls(rank, process, on_line)

    @property
    def ended(self) -> "asyncio.Future[Exit]":
        return self._ended

    async def _watch(self, on_line: Callable[[str], None]) -> Exit:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        async with asyncio.TaskGroup() as reading:
            reading.create_task(_each_line(self._process.stdout, on_line))
            reading.create_task(_each_line(self._process.stderr, self._last_words.append))
        return Exit(self.rank, await self._process.wait(), tuple(self._last_words))

    def terminate(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()


async def _each_line(stream: asyncio.StreamReader, then: Callable[[str], None]) -> None:
    async for line in _lines(stream):
        then(line)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Like iterating the stream, but a line that never ends is cut instead of raising."""
    rest = b""
    while chunk := await stream.read(LONGEST_LINE):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        rest = rest[-LONGEST_LINE:]
    if rest:
        yield rest.decode(errors="replace")
