"""How a person ends a run early: the first signal asks, the second insists."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from ringwide.training.progress import StopRequest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDED_BY_SIGNAL = 128  # an exit code is this and the number of the signal


class StopSignals:
    """`asked` and `insisted` are done, with the number of the signal, once that happened."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[int] = loop.create_future()
        self.insisted: asyncio.Future[int] = loop.create_future()

    def ask(self, number: int) -> None:
        heard = self.insisted if self.asked.done() else self.asked
        if not heard.done():
            heard.set_result(number)

    async def catch_up(self) -> None:
        """Let the loop hear what came while it was kept from it, by the drawing of a report for example."""
        await asyncio.sleep(0.001)


def heeded() -> list[signal.Signals]:
    """Without those that this process was started to ignore, as `nohup` does with SIGHUP."""
    return [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


async def until_any(*futures: "asyncio.Future[Any]", seconds: float | None = None) -> None:
    """Until one of them is done, or the time is over. None of them is cancelled, nor asked for its result."""
    await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


@contextmanager
def halted_by_signals() -> Iterator[StopSignals]:
    halt, loop = StopSignals(), asyncio.get_running_loop()
    on_terminal = sys.stdout.isatty()

    def hear(number: int) -> None:
        if number == signal.SIGHUP and on_terminal:
            _forget_terminal()
        halt.ask(number)

    numbers = heeded()
    for number in numbers:
        loop.add_signal_handler(number, hear, number)
    try:
        yield halt
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _forget_terminal() -> None:
    """It is gone: writing to it would be an error, and end the run before its report is written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


# What a signal does to a node: from its first step on it is noted, and ends the training; before, it ends the node.


class NodeStop:
    def __init__(self) -> None:
        self._request = StopRequest()
        self._training = False
        self._task: asyncio.Task[int] | None = None

    def after_a_step(self) -> StopRequest:
        """From now on a first signal is only noted, for training to end. A second one ends the node all the same.

        It stays so after training: when all ranks have stopped because of another's signal, ours may still be on its
        way, and must not end us before we have told how it went.
        """
        self._training = True
        return self._request

    async def run(self, main: Coroutine[Any, Any, int]) -> int:
        """Run `main` to its end, or until a signal ends it; the code then tells which signal it was."""
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
