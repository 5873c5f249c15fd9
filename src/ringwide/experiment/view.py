"""View of a run while its nodes train: a live table on a terminal, a line every few seconds elsewhere."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TextIO

from ringwide.experiment.report import units
from ringwide.experiment.run_state import Board
from ringwide.experiment.summary import aligned
from ringwide.training.progress import TrainingPlan

if TYPE_CHECKING:
    from rich.text import Text

LINE_EVERY_SECONDS = 2.0
LOOK_EVERY_SECONDS = 0.25


class View(AbstractContextManager["View"], Protocol):
    """Display of a board for the length of a block."""

    def tick(self) -> None:
        """Show what has changed on the board. Called a few times a second."""

    def say(self, text: str) -> None:
        """Show a sentence."""


def view_for(board: Board, out: TextIO) -> View:
    if board.config.logging == "silent":
        return Silent()
    if not out.isatty():
        return Lines(board, out)
    try:
        return Live(board, out)
    except ImportError:  # rich comes with the extra `experiments`
        return Lines(board, out)


class Silent(AbstractContextManager["Silent"]):
    """View that shows nothing."""

    def __exit__(self, *_: object) -> None:
        pass

    def tick(self) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class Lines(AbstractContextManager["Lines"]):
    """One line every few seconds; in verbose mode also one for each node."""

    def __init__(self, board: Board, out: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._board, self._out, self._clock = board, out, clock
        self._verbose = board.config.logging == "verbose"
        self._planned = False
        self._due, self._shown = -math.inf, 0

    def __enter__(self) -> "Lines":
        self.say(waiting(self._board))
        return self

    def __exit__(self, *_: object) -> None:
        self._tell_plan()
        if self._board.is_training and self._board.step != self._shown:
            self._show()

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def tick(self) -> None:
        self._tell_plan()
        if self._board.is_training and self._clock() >= self._due:
            self._due = self._clock() + LINE_EVERY_SECONDS
            self._show()

    def _tell_plan(self) -> None:
        if self._board.plan and not self._planned:
            self._planned = True
            self.say(planned(self._board.plan))

    def _show(self) -> None:
        self._shown = self._board.step
        self.say(line(self._board))
        if self._verbose:
            self.say("\n".join(node_line(self._board, rank) for rank in sorted(self._board.tallies)))


def waiting(board: Board) -> str:
    remote = board.config.nodes - board.nodes
    if remote:  # started elsewhere, not by this launcher
        return f"waiting for {remote} other node{'s' if remote > 1 else ''}"
    return f"waiting for {board.nodes} node{'s' if board.nodes > 1 else ''} to start"


def planned(plan: TrainingPlan) -> str:
    buckets = f"{plan.buckets:,} bucket{'s' if plan.buckets > 1 else ''}"
    return (
        f"{plan.parameters:,} parameters, {units.size(plan.gradient_bytes)} of gradients in {buckets};"
        f" {plan.samples:,} samples, {plan.steps_per_epoch:,} steps an epoch"
    )


def position(board: Board) -> str:
    """Current step, time and epoch, with their ends where they are known."""
    last = f"/{board.plan.last_step}" if board.plan and board.plan.last_step else ""
    until = f"  {board.seconds:.0f}/{board.plan.seconds:g} s" if board.plan and board.plan.seconds else ""
    return f"step {board.step}{last}{until}  epoch {board.epoch + 1}"


def line(board: Board) -> str:
    speed = f"{units.number(board.batches_per_second)} batches/s  {units.speed(board.throughput)}"
    return f"{position(board)}  loss {board.loss:.4f}  {speed}"


def node_line(board: Board, rank: int) -> str:
    tally = board.tallies[rank]
    recent, last = tally.recent(), tally.last
    return (
        f"  node {rank}  step {last.number if last else 0}  loss {recent.mean_loss:.4f}"
        f"  {units.number(recent.batches_per_second)} batches/s  {units.speed(recent.throughput)}"
        f"  network {units.share(recent.network_share)}, {units.share(recent.hidden_share)} of it hidden"
    )


# -- live view

MOST_ROWS = 16
LINES_BESIDE_ROWS = 6
BAR_WIDTH = 40
COLUMNS = ("node", "step", "epoch", "loss", "batches/s", "sent", "on network", "hidden")


class Live(AbstractContextManager["Live"]):
    """View for a terminal: overall progress, and a row for each node. Needs rich.

    The table disappears at the end, where the summary follows. It is redrawn only by `tick` and `say`. Its rows are
    plain lines: a table of rich would take ten times as long, on the cores on which the nodes compute.
    """

    def __init__(self, board: Board, out: TextIO) -> None:
        from rich import live
        from rich.console import Console

        self._board, self._note, self._heard = board, "", -1
        self._live = live.Live(console=Console(file=out), auto_refresh=False, transient=True)

    def __enter__(self) -> "Live":
        self._live.start()
        self.tick()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._note = text
        self._draw()

    def tick(self) -> None:
        if self._board.heard != self._heard:
            self._heard = self._board.heard
            self._draw()

    def _draw(self) -> None:
        rows = max(1, min(MOST_ROWS, self._live.console.height - LINES_BESIDE_ROWS))
        self._live.update(picture(self._board, self._note, rows=rows), refresh=True)


def picture(board: Board, note: str, *, rows: int) -> "Text":
    from rich.text import Text

    if not board.is_training:
        return Text(f"{board.config.name}: {note or waiting(board)}")
    head, *nodes = aligned([COLUMNS, *(_cells(board, rank) for rank in rows_of(board, rows))])
    others = len(board.tallies) - len(nodes)
    below = [*nodes, *([f"and {others} others, which wait for these"] if others else []), *([note] if note else [])]
    tested = f"  held out {board.evaluations[-1].loss:.4f}" if board.evaluations else ""
    above = [*_heading(board), f"\n{line(board)}{tested}\n", (head, "dim"), "\n"]
    return Text.assemble(*above, "\n".join(below), no_wrap=True, overflow="ellipsis")


def rows_of(board: Board, rows: int) -> list[int]:
    """Ranks to show: all, or the slowest, for which the others wait."""
    if len(board.tallies) <= rows:
        return sorted(board.tallies)
    return sorted(sorted(board.tallies, key=lambda rank: _speed(board, rank))[:rows])


def _speed(board: Board, rank: int) -> tuple[float, float]:
    """Sort key. All nodes make the same steps, so the slow ones are those that wait least on the network."""
    tally = board.tallies[rank]
    return (tally.last.number if tally.last else 0, tally.recent().network_share)


def _heading(board: Board) -> list[str | tuple[str, str]]:
    filled = round(board.done * BAR_WIDTH)
    left = f"  {units.duration(board.seconds_left)} left" if math.isfinite(board.seconds_left) else ""
    bar = [("━" * filled, "green"), ("━" * (BAR_WIDTH - filled), "dim")]
    return [(board.config.name, "bold"), "  ", *bar, f"  {board.done:.0%}{left}"]


def _cells(board: Board, rank: int) -> tuple[str, ...]:
    tally = board.tallies[rank]
    recent, last = tally.recent(), tally.last
    return (
        str(rank),
        f"{last.number:,}" if last else "",
        str(last.epoch + 1) if last else "",
        f"{recent.mean_loss:.4f}",
        units.number(recent.batches_per_second),
        units.speed(recent.throughput),
        units.share(recent.network_share),
        units.share(recent.hidden_share),
    )
