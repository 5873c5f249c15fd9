"""Live view for a terminal: overall progress, and a row for each node. Needs rich.

The rows are plain lines: a table of rich would take ten times as long, on the cores on which the nodes compute.
"""

import math
from contextlib import AbstractContextManager
from typing import TextIO

from rich import live
from rich.console import Console
from rich.text import Text

from ringwide.experiment.board import Board
from ringwide.experiment.report import units
from ringwide.experiment.summary import aligned
from ringwide.experiment.view import line, waiting

MOST_ROWS = 16
LINES_BESIDE_ROWS = 6
BAR_WIDTH = 40
COLUMNS = ("node", "step", "epoch", "loss", "batches/s", "sent", "on network", "hidden")


class Live(AbstractContextManager["Live"]):
    """Table that disappears at the end, where the summary follows. It is redrawn only by `tick` and `say`."""

    def __init__(self, board: Board, out: TextIO) -> None:
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


def picture(board: Board, note: str, *, rows: int) -> Text:
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
