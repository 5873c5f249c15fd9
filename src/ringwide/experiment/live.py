"""The view for a terminal: how far all are, and a row for each node. Needs rich."""

import math
from contextlib import AbstractContextManager
from typing import TextIO

from rich import live
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ringwide.experiment.board import Board
from ringwide.experiment.report import units
from ringwide.experiment.view import position, waiting

MOST_ROWS = 16
BAR_WIDTH = 40
COLUMNS = ("node", "step", "epoch", "loss", "batches/s", "sent", "on network", "hidden")


class Live(AbstractContextManager["Live"]):
    """Gone at the end, when a summary takes its place. It never draws by itself: who ticks decides what that costs."""

    def __init__(self, board: Board, out: TextIO) -> None:
        self._board, self._note = board, ""
        self._live = live.Live(console=Console(file=out), auto_refresh=False, transient=True)

    def __enter__(self) -> "Live":
        self._live.start()
        self.tick()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._note = text
        self.tick()

    def tick(self) -> None:
        self._live.update(picture(self._board, self._note, rows=self._rows_that_fit()), refresh=True)

    def _rows_that_fit(self) -> int:
        return max(1, min(MOST_ROWS, self._live.console.height - 7))


def picture(board: Board, note: str, *, rows: int) -> RenderableType:
    if not board.is_training:
        return Text(f"{board.config.name}: {note or waiting(board)}")
    return Group(_heading(board), _overall(board), _nodes(board, rows), Text(note))


def _heading(board: Board) -> RenderableType:
    heading = Table.grid(padding=(0, 2))
    left = f"{units.duration(board.seconds_left)} left" if math.isfinite(board.seconds_left) else ""
    heading.add_row(
        Text(board.config.name, "bold"), ProgressBar(1.0, board.done, width=BAR_WIDTH), f"{board.done:.0%}", left
    )
    return heading


def _overall(board: Board) -> Text:
    speed = f"{units.number(board.batches_per_second)} batches/s  {units.speed(board.throughput)}"
    tested = f"  held out {board.evaluations[-1].loss:.4f}" if board.evaluations else ""
    return Text(f"{position(board)}  loss {board.loss:.4f}{tested}  {speed}")


def _nodes(board: Board, rows: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    shown = rows_of(board, rows)
    for rank in shown:
        table.add_row(*_cells(board, rank))
    if others := len(board.tallies) - len(shown):
        table.caption = f"and {others} others, which wait for these"
    return table


def rows_of(board: Board, rows: int) -> list[int]:
    """All nodes, or the slowest of them: those keep the others waiting."""
    if len(board.tallies) <= rows:
        return sorted(board.tallies)
    return sorted(sorted(board.tallies, key=lambda rank: _speed(board, rank))[:rows])


def _speed(board: Board, rank: int) -> tuple[float, float]:
    """Nodes make the same steps, so what tells them apart is how little they wait for others."""
    tally = board.tallies[rank]
    return (tally.last.number if tally.last else 0, tally.recent().network_share)


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
