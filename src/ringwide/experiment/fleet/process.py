"""One node as a child process: its lines, its last words, its end."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringwide.experiment.fleet.nursery import Child, Task, fork
from ringwide.experiment.fleet.seam import Exit
from ringwide.experiment.fleet.words import Words, each_line


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
        self._words = Words(error_log)
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
