"""What is shown while it lasts: a bar in a terminal, plain lines elsewhere, and how long it will still take."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from bench.units import span


class Progress(AbstractContextManager["Progress"]):
    """Rounds done of all rounds. A round with more ranks is taken to last longer, in proportion."""

    def __init__(self, ranks: Sequence[int], rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ranks, self._rounds = list(ranks), rounds
        self._done: dict[int, list[float]] = {}
        self._began_round = clock()
        self._left_out = 0
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and find_spec("rich") is not None:
            self._bar = _make_bar(sum(self._ranks) * self._rounds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def begin_rounds(self) -> None:
        """All have been started, which takes its time as well."""
        self._began_round = self._clock()

    def round_done(self, ranks: int, number: int) -> None:
        now = self._clock()
        self._done.setdefault(ranks, []).append(now - self._began_round)
        self._began_round = now
        left = span(self.seconds_left())
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], ranks)
            self._bar.update(
                self._bar.task_ids[0], description=f"{ranks} ranks, round {number + 1} of {self._rounds}, {left} left"
            )
        else:
            taken = span(self._done[ranks][-1])
            self.say(f"{ranks} ranks, round {number + 1} of {self._rounds} took {taken}; about {left} left")

    def cut_short(self, ranks: int) -> None:
        """There are no more rounds with this number of ranks."""
        missing = self._rounds - len(self._done[ranks])
        self._left_out += ranks * missing
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], ranks * missing)

    def seconds_left(self) -> float:
        """From the rounds so far; of numbers of ranks that have not begun, from the pace per rank of the last."""
        *_, last = self._done
        pace = sum(self._done[last]) / len(self._done[last]) / last
        missing = sum(ranks * (self._rounds - len(self._done.get(ranks, []))) for ranks in self._ranks)
        return pace * (missing - self._left_out)


def _make_bar(total: int) -> Any:
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    bar = Bar(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    bar.add_task("starting", total=total)
    bar.start()
    return bar
