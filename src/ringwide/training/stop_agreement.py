"""When to stop. All ranks must stop after the same step, though their clocks differ and a signal may reach only one.

So they ask each other: the longest time anyone has trained, the highest number of a signal anyone has heard. To ask
after every step would double the collectives of a small model; so it is done a few times a second, after steps that
all ranks know from the answers, which are the same everywhere.

How fast the next steps are can only be guessed from the last ones. So that a model that turns slow still stops, they
ask at the latest after MOST_STEPS, whatever the speed was: that many steps may pass between a signal and the end. Up to
250 steps a second the bound changes nothing, as no more fit into a moment; above it one collective in 26 is a question.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ringwide.training.progress import StopRequest

BEAT_SECONDS = 0.1
FASTEST_GROWTH = 2
MOST_STEPS = 25


class Compares(Protocol):
    async def allreduce(self, tensors: Any, op: str = "mean", *, bucket: str = "") -> Any: ...


@dataclass(frozen=True, slots=True)
class StopNote:
    """What all ranks know after asking."""

    step: int
    seconds: float = 0.0
    signal: int = 0


class StopAgreement:
    def __init__(
        self, ring: Compares, *, seconds: Callable[[], float], stop: StopRequest, limit: float | None, first_step: int
    ) -> None:
        self._ring, self._seconds, self._stop, self._limit = ring, seconds, stop, limit
        self._last = StopNote(first_step - 1)
        self._interval = 1

    @property
    def signal(self) -> int:
        """Which signal all ranks have agreed to stop for; 0: none."""
        return self._last.signal

    def is_due(self, step: int) -> bool:
        return step >= self._last.step + self._interval

    async def beat(self, step: int) -> bool:
        """Ask the others. True: all stop after this step."""
        news = torch.tensor([self._seconds(), float(self._stop.signal)], dtype=torch.float64)
        seconds, signal = (await self._ring.allreduce(news, op="max")).tolist()
        beat = StopNote(step, seconds, int(signal))
        self._interval = _interval(self._last, beat, self._limit)
        self._last = beat
        return bool(beat.signal) or (self._limit is not None and beat.seconds >= self._limit)


def _interval(last: StopNote, now: StopNote, limit: float | None) -> int:
    """How many steps the next beat is away: what fits into a moment, and not past the end."""
    steps, seconds = now.step - last.step, now.seconds - last.seconds
    most = min(steps * FASTEST_GROWTH, MOST_STEPS)
    if seconds <= 0:
        return most
    moment = BEAT_SECONDS if limit is None else min(BEAT_SECONDS, limit - now.seconds)
    return max(1, int(min(moment * steps / seconds, most)))
