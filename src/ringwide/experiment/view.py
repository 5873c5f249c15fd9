"""View of a run while its nodes train: a live table on a terminal, a line every few seconds elsewhere."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TextIO

from ringwide.experiment.board import Board
from ringwide.experiment.report import units
from ringwide.training.progress import TrainingPlan

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
        from ringwide.experiment.live_view import Live
    except ImportError:  # rich comes with the extra `experiments`
        return Lines(board, out)
    return Live(board, out)


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
