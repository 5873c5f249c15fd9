"""The calls of one rank's user, in the order in which they were made, each with the future that its task awaits."""

import asyncio
from collections import deque
from collections.abc import Sequence

from ringwide.collective.dispatch import Collective, Dispatcher
from ringwide.collective.early import WINDOW
from ringwide.collective.operation import Numbers
from ringwide.collective.plan import Plan

_CANCELLED = "its task was cancelled"


class _Call:
    """One call of a user, from the moment it is made."""

    __slots__ = ("collective", "numbers", "outcome", "plan")

    def __init__(self, plan: Plan, numbers: Sequence[Numbers], outcome: asyncio.Future[None]) -> None:
        self.plan, self.numbers, self.outcome = plan, numbers, outcome
        self.collective: Collective | None = None  # while it is open


class Calls:
    """Gives calls their numbers in the order in which they were made, whatever becomes of them meanwhile."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Call] = deque()  # those whose turn has not come
        self._running = 0
        self.made = 0

    async def make(self, plan: Plan, numbers: Sequence[Numbers]) -> None:
        """Carry out a plan together with the other ranks."""
        call = _Call(plan, numbers, self._loop.create_future())
        self._waiting.append(call)
        self._start_waiting()
        try:
            await call.outcome
        except asyncio.CancelledError:
            if call.collective is not None:
                self._dispatcher.abort(call.collective, _CANCELLED)
                self._end(call)
            raise

    def _start_waiting(self) -> None:
        while self._waiting and self._running < WINDOW:
            call = self._waiting.popleft()
            if call.outcome.cancelled():
                self._dispatcher.skip(_CANCELLED)
            else:
                self._start(call)

    def _start(self, call: _Call) -> None:
        def on_done(error: Exception | None) -> None:
            self._end(call)
            if call.outcome.done():
                return
            if error is None:
                call.outcome.set_result(None)
            else:
                call.outcome.set_exception(error)

        self._running += 1
        self.made += 1
        try:
            collective = self._dispatcher.submit(call.plan, call.numbers, on_done)
        except Exception as error:  # this call's, though another one's end may have started it
            on_done(error)
        else:
            call.collective = None if call.outcome.done() else collective

    def _end(self, call: _Call) -> None:
        call.collective = None
        self._running -= 1
        if self._waiting:
            self._loop.call_soon(self._start_waiting)
