"""What a signal does to a node: while it trains, it is noted until the step is over; before and after, it ends it."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from ringwide.training.stop import StopRequest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDED_BY_SIGNAL = 128


class Stopping:
    def __init__(self) -> None:
        self._request = StopRequest()
        self._training = False
        self._task: asyncio.Task[int] | None = None

    @contextmanager
    def after_a_step(self) -> Iterator[StopRequest]:
        """While this lasts, a first signal is only noted. A second one ends the node all the same."""
        self._training = True
        try:
            yield self._request
        finally:
            self._training = False

    async def run(self, main: Coroutine[Any, Any, int]) -> int:
        """Run `main` to its end, or until a signal ends it; the code then tells which signal it was."""
        self._task = asyncio.ensure_future(main)
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._heard, number)
        try:
            return await self._task
        except asyncio.CancelledError:
            if not self._request.signal:
                raise
            return ENDED_BY_SIGNAL + self._request.signal

    def _heard(self, number: int) -> None:
        waits = self._training and not self._request.signal
        self._request.signal = number
        if not waits and self._task is not None:
            self._task.cancel()
