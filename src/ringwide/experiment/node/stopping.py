"""What a signal does to a node: from its first step on it is noted, and ends the training; before, it ends the node."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from ringwide.experiment.halt import ENDED_BY_SIGNAL, heeded
from ringwide.training.progress import StopRequest


class Stopping:
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
