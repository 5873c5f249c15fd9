"""What a process says, line by line."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

LAST_WORDS = 20
LONGEST_LINE = 1024 * 1024


class Words:
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
