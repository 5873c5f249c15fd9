"""The calls of one rank's user, in the order in which they were made, and the task of each until it is over."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple, Protocol

from ringwide.collective.collective import Collective
from ringwide.collective.dispatch import Dispatcher
from ringwide.collective.early import WINDOW
from ringwide.collective.numbers import Numbers
from ringwide.collective.plan import Plan

_CANCELLED = "its task was cancelled"
TURN_SECONDS = 0.001
"""Calls that find their answers at once never sleep. After so long the event loop gets a turn all the same."""


class Refusal(NamedTuple):
    """Why a call cannot take part, though the others may already wait for it."""

    reason: str
    """What the others are told."""
    error: Callable[[int], Exception]
    """What the caller gets, given the number that the call has all the same."""


OnNumber = Callable[[int], object]
"""on_number(number): a call has begun, whatever becomes of it."""


class Looking(Protocol):
    """A lane on which one can look for what has come, instead of waiting for the event loop to say so."""

    def look(self) -> bool: ...


class _Call:
    """One call of a user, from the moment it is made."""

    number = 0  # when it is known
    collective: Collective | None = None  # while it is open
    outcome: asyncio.Future[None] | None = None  # for its task to await, if it has to
    over = False
    error: Exception | None = None
    succeeded: Collective | None = None

    def __init__(
        self, plan: Plan, numbers: Sequence[Numbers], refusal: Refusal | None, on_number: OnNumber | None
    ) -> None:
        self.plan, self.numbers, self.refusal, self.on_number = plan, numbers, refusal, on_number


class Calls:
    """Gives calls their numbers in the order in which they were made, whatever becomes of them meanwhile."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        express_lanes: Callable[[Sequence[int]], Sequence[Looking]],
        linger_seconds: float,
        leaving: Callable[[], bool],
    ) -> None:
        self._dispatcher, self._express_lanes, self.linger_seconds = dispatcher, express_lanes, linger_seconds
        self._leaving = leaving  # this process was told to end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Call] = deque()  # those whose turn has not come
        self._running = 0
        self._running_since = self._running_seconds = 0.0
        self._turned_at = perf_counter()  # when the event loop has had a turn
        self.made = 0

    @property
    def running_seconds(self) -> float:
        """The time in which any call was under way."""
        now = perf_counter() - self._running_since if self._running else 0.0
        return self._running_seconds + now

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
        call = _Call(plan, numbers, refusal, on_number)
        try:
            if self._waiting or refusal is not None or self._running == WINDOW:
                self._waiting.append(call)
                self._start_waiting()
            else:
                self._start(call)
            if plan.express and self._running == 1 and self.linger_seconds:
                self._linger(call)
            if not call.over:
                call.outcome = self._loop.create_future()
                await call.outcome
                self._turned_at = perf_counter()
            elif perf_counter() - self._turned_at > TURN_SECONDS:
                await asyncio.sleep(0)
                self._turned_at = perf_counter()
        except asyncio.CancelledError:
            self._cancel(call)
            raise
        if call.error is not None:
            raise call.error
        return call.number

    def _linger(self, call: _Call) -> None:
        """Look for the answer before going to sleep: to wake up often takes longer than the answer.

        Without giving the core away between looks: the scheduler would take that for a wish to wait for long.
        """
        while call.collective is not None:
            lanes = self._express_lanes(call.collective.waiting_for())
            deadline = perf_counter() + self.linger_seconds
            while not any(lane.look() for lane in lanes):
                if perf_counter() > deadline:
                    return

    def _cancel(self, call: _Call) -> None:
        if call.collective is not None:
            self._dispatcher.abort(call.collective, _CANCELLED, leaving=self._leaving())
            self._end(call, None)
        elif call.succeeded is not None:
            call.succeeded.undo()

    def _start_waiting(self) -> None:
        while self._waiting and self._running < WINDOW:
            call = self._waiting.popleft()
            if call.outcome is not None and call.outcome.cancelled():
                self._dispatcher.skip(_CANCELLED)
            elif call.refusal is not None:
                self._count_in()
                self._end(call, call.refusal.error(self._dispatcher.skip(call.refusal.reason)))
            else:
                self._start(call)

    def _count_in(self) -> None:
        if not self._running:
            self._running_since = perf_counter()
        self._running += 1

    def _start(self, call: _Call) -> None:
        self._count_in()
        self.made += 1
        try:
            collective = self._dispatcher.submit(call.plan, call.numbers, partial(self._end, call))
        except Exception as error:  # this call's, though another one's end may have started it
            self._end(call, error)
            return
        call.number = collective.number
        if call.on_number is not None:
            call.on_number(call.number)
        if not call.over:
            call.collective = collective
        elif call.error is None:
            call.succeeded = collective

    def _end(self, call: _Call, error: Exception | None) -> None:
        call.succeeded = call.collective if error is None else None
        call.collective, call.over, call.error = None, True, error
        self._running -= 1
        if not self._running:
            self._running_seconds += perf_counter() - self._running_since
        if self._waiting:
            self._loop.call_soon(self._start_waiting)
        if call.outcome is not None and not call.outcome.done():
            call.outcome.set_result(None)
