"""Agreement on when to stop: all ranks stop after the same step, though clocks differ and a signal may reach only one.

Ranks ask each other by an all-reduce: what is the longest time any has trained, and the highest signal any has got?
Asking after every step would double the collectives of a small model. So they ask a few times a second, after steps
that all ranks derive from the previous answers, which are the same everywhere.

The speed of the next steps can only be guessed from the last ones. So that a model that turns slow still stops, ranks
ask at the latest after MOST_STEPS, and at most that many steps pass between a signal and the end. Up to 250 steps a
second this bound changes nothing; above that one collective in 26 is a question.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ringwide.training.progress import StopRequest

ASK_EVERY_SECONDS = 0.1
FASTEST_GROWTH = 2
MOST_STEPS = 25


class Compares(Protocol):
    async def allreduce(self, tensors: Any, op: str = "mean", *, bucket: str = "") -> Any: ...


@dataclass(frozen=True, slots=True)
class StopNote:
    """Answer that all ranks have after asking at `step`."""

    step: int
    seconds: float = 0.0
    signal: int = 0


class StopAgreement:
    """One rank's part in the agreement. `stop` holds its signal; `limit` is the time after which to stop."""

    def __init__(
        self, ring: Compares, *, seconds: Callable[[], float], stop: StopRequest, limit: float | None, first_step: int
    ) -> None:
        self._ring, self._seconds, self._stop, self._limit = ring, seconds, stop, limit
        self._last = StopNote(first_step - 1)
        self._interval = 1

    @property
    def signal(self) -> int:
        """Signal for which all ranks have agreed to stop; 0: none."""
        return self._last.signal

    def is_due(self, step: int) -> bool:
        return step >= self._last.step + self._interval

    async def ask(self, step: int) -> bool:
        """Ask all ranks. True if all stop after this step."""
        ours = torch.tensor([self._seconds(), float(self._stop.signal)], dtype=torch.float64)
        seconds, signal = (await self._ring.allreduce(ours, op="max")).tolist()
        note = StopNote(step, seconds, int(signal))
        self._interval = _interval(self._last, note, self._limit)
        self._last = note
        return bool(note.signal) or (self._limit is not None and note.seconds >= self._limit)


def _interval(last: StopNote, now: StopNote, limit: float | None) -> int:
    """Number of steps until the next question: as many as fit into its interval, and not past the time limit."""
    steps, seconds = now.step - last.step, now.seconds - last.seconds
    most = min(steps * FASTEST_GROWTH, MOST_STEPS)
    if seconds <= 0:
        return most
    interval = ASK_EVERY_SECONDS if limit is None else min(ASK_EVERY_SECONDS, limit - now.seconds)
    return max(1, int(min(interval * steps / seconds, most)))
