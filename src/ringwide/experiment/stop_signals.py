"""Signals that end a run early: the first asks every node to stop after a step, the second ends them at once."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from ringwide.training.progress import StopRequest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDED_BY_SIGNAL = 128  # exit code: this plus the number of the signal


class StopSignals:
    """Stop requests seen so far: `asked` resolves to the first signal number, `insisted` to the second."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[int] = loop.create_future()
        self.insisted: asyncio.Future[int] = loop.create_future()

    def ask(self, number: int) -> None:
        future = self.insisted if self.asked.done() else self.asked
        if not future.done():
            future.set_result(number)

    async def catch_up(self) -> None:
        """Let the loop handle signals that came while it was blocked, by drawing a report for example."""
        await asyncio.sleep(0.001)


def heeded() -> list[signal.Signals]:
    """Stop signals, without those this process was started to ignore, as `nohup` does with SIGHUP."""
    return [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


async def until_any(*futures: "asyncio.Future[Any]", seconds: float | None = None) -> None:
    """Wait until one of the futures is done or the time is over. None is cancelled, and no exception is raised."""
    await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


@contextmanager
def stop_on_signals() -> Iterator[StopSignals]:
    """Collect the stop signals of this process for the length of the block."""
    stop, loop = StopSignals(), asyncio.get_running_loop()
    on_terminal = sys.stdout.isatty()

    def hear(number: int) -> None:
        if number == signal.SIGHUP and on_terminal:
            _forget_terminal()
        stop.ask(number)

    numbers = heeded()
    for number in numbers:
        loop.add_signal_handler(number, hear, number)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _forget_terminal() -> None:
    """Redirect output to /dev/null: the terminal is gone, and a failed write would end the run without a report."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class NodeStop:
    """Stop signals of one node: before training a signal ends the node, from then on it only requests a stop."""

    def __init__(self) -> None:
        self._request = StopRequest()
        self._training = False
        self._task: asyncio.Task[int] | None = None

    def after_a_step(self) -> StopRequest:
        """From now on the first signal only requests a stop of the training. A second one still ends the node.

        This holds after training too: when all ranks have stopped for a signal to another rank, the signal to this one
        may still be on its way, and must not end it before it has sent its result.
        """
        self._training = True
        return self._request

    async def run(self, main: Coroutine[Any, Any, int]) -> int:
        """Run `main` to its end, or until a signal cancels it. The exit code then tells which signal it was."""
        self._task = asyncio.ensure_future(main)
        for number in heeded():
            asyncio.get_running_loop().add_signal_handler(number, self._heard, number)
        try:
            return await self._task
        except asyncio.CancelledError:
            if not self._request.signal:
                raise
            return ENDED_BY_SIGNAL + self._request.signal

    def _heard(self, number: int) -> None:
        only_noted = self._training and not self._request.signal
        self._request.signal = number
        if not only_noted and self._task is not None:
            self._task.cancel()
