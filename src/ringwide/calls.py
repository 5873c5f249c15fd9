"""The calls of one rank's user, in the order in which they were made, each with the future that its task awaits."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ringwide.collective.collective import Collective
from ringwide.collective.dispatch import Dispatcher
from ringwide.collective.early import WINDOW
from ringwide.collective.numbers import Numbers
from ringwide.collective.plan import Plan

_CANCELLED = "its task was cancelled"


class Refusal(NamedTuple):
    """Why a call cannot take part, though the others may already wait for it."""

    reason: str
    """What the others are told."""
    error: Callable[[int], Exception]
    """What the caller gets, given the number that the call has all the same."""


OnNumber = Callable[[int], object]
"""on_number(number): a call has begun, whatever becomes of it."""


class _Call:
    """One call of a user, from the moment it is made."""

    __slots__ = ("collective", "number", "numbers", "on_number", "outcome", "plan", "refusal", "succeeded")

    def __init__(
        self, plan: Plan, numbers: Sequence[Numbers], refusal: Refusal | None, outcome: asyncio.Future[None]
    ) -> None:
        self.plan, self.numbers, self.refusal, self.outcome = plan, numbers, refusal, outcome
        self.on_number: OnNumber | None = None
        self.number = 0  # when it is known
        self.collective: Collective | None = None  # while it is open
        self.succeeded: Collective | None = None


class Calls:
    """Gives calls their numbers in the order in which they were made, whatever becomes of them meanwhile."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        look: Callable[[Sequence[int]], None],
        linger_seconds: float,
        leaving: Callable[[], bool],
    ) -> None:
        self._dispatcher, self._look, self.linger_seconds = dispatcher, look, linger_seconds
        self._leaving = leaving  # this process was told to end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Call] = deque()  # those whose turn has not come
        self._running = 0
        self.made = 0

    async def make(
        self,
        plan: Plan,
        numbers: Sequence[Numbers],
        refusal: Refusal | None = None,
        on_number: OnNumber | None = None,
    ) -> int:
        """Carry out a plan together with the other ranks, or let them know at its turn that it is refused.

        Returns the number that it has on all ranks.
        """
        call = _Call(plan, numbers, refusal, self._loop.create_future())
        call.on_number = on_number
        self._waiting.append(call)
        self._start_waiting()
        if plan.express and self._running == 1 and self.linger_seconds:
            self._linger(call)
        try:
            await call.outcome
        except asyncio.CancelledError:
            if call.collective is not None:
                self._dispatcher.abort(call.collective, _CANCELLED, leaving=self._leaving())
                self._end(call)
            elif call.succeeded is not None:
                call.succeeded.undo()
            raise
        return call.number

    def _linger(self, call: _Call) -> None:
        """Look for the answer before going to sleep: to wake up often takes longer than the answer."""
        deadline = time.perf_counter() + self.linger_seconds
        while call.collective is not None:
            self._look(call.collective.waiting_for())
            if time.perf_counter() > deadline:
                return
            os.sched_yield()  # whoever has the answer may need this core

    def _start_waiting(self) -> None:
        while self._waiting and self._running < WINDOW:
            call = self._waiting.popleft()
            if call.outcome.cancelled():
                self._dispatcher.skip(_CANCELLED)
            elif call.refusal is not None:
                call.outcome.set_exception(call.refusal.error(self._dispatcher.skip(call.refusal.reason)))
            else:
                self._start(call)

    def _start(self, call: _Call) -> None:
        def on_done(error: Exception | None) -> None:
            call.succeeded = call.collective if error is None else None
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
            call.number = collective.number
            if call.on_number is not None:
                call.on_number(call.number)
            if not call.outcome.done():
                call.collective = collective
            elif not call.outcome.cancelled() and call.outcome.exception() is None:
                call.succeeded = collective

    def _end(self, call: _Call) -> None:
        call.collective = None
        self._running -= 1
        if self._waiting:
            self._loop.call_soon(self._start_waiting)
