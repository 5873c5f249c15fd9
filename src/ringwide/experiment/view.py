"""What a person sees while the nodes train: bars on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TextIO

from ringwide.training.progress import Step

LINE_EVERY_SECONDS = 2.0


class View(AbstractContextManager["View"], Protocol):
    def update(self, rank: int, step: Step) -> None: ...


class Lines(nullcontext["Lines"]):
    """One line every few seconds."""

    def __init__(self, nodes: int, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(self)
        self._nodes, self._out, self._clock = nodes, out, clock
        self._latest: dict[int, Step] = {}
        self._due = clock()

    def update(self, rank: int, step: Step) -> None:
        self._latest[rank] = step
        if self._clock() >= self._due and len(self._latest) == self._nodes:
            self._due = self._clock() + LINE_EVERY_SECONDS
            print(self._line(), file=self._out, flush=True)

    def _line(self) -> str:
        slowest = min(self._latest.values(), key=lambda step: step.number)
        loss = sum(step.loss for step in self._latest.values()) / self._nodes
        return f"step {slowest.number}/{slowest.total}  epoch {slowest.epoch + 1}  loss {loss:.4f}"


class Bars(AbstractContextManager["Bars"]):
    """One bar for each node."""

    def __init__(self, nodes: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(),
        )
        self._tasks = [self._progress.add_task(f"node {rank}", total=None, loss="starting") for rank in range(nodes)]

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, rank: int, step: Step) -> None:
        self._progress.update(self._tasks[rank], completed=step.number, total=step.total, loss=f"loss {step.loss:.4f}")


def view_for(nodes: int, out: TextIO) -> View:
    if not out.isatty():
        return Lines(nodes, out)
    try:
        return Bars(nodes)
    except ImportError:  # rich comes with the extra `experiments`
        return Lines(nodes, out)
