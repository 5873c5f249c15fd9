"""An event loop on the virtual clock: that of one rank, as it would be in a process of its own."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from ringwide.simulator.clock import VirtualClock
from ringwide.simulator.host import Host

Result = TypeVar("Result")


class NumberedTask(asyncio.Task[Any]):
    """A task group keeps its tasks in a set: without an order of its own, a replay would not be exact."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class RankLoop(asyncio.AbstractEventLoop):
    """Runs what is ready in turns, in asyncio's order. When the next turn comes is a matter of chance, rank by rank.

    A host that is frozen is a process that computes: its loop stands still, and goes on where it was.
    """

    def __init__(self, clock: VirtualClock, host: Host, chance: Callable[[], float], turn_seconds: float) -> None:
        self._clock, self._host, self._chance, self._turn_seconds = clock, host, chance, turn_seconds
        self._ready: deque[asyncio.Handle] = deque()
        self._factory: Callable[..., Any] | None = self._numbered
        self._arranged = False  # a turn will come, or this is one
        self.tasks: list[asyncio.Task[Any]] = []
        self.complaints: list[str] = []  # what asyncio would have logged

    # -- what asyncio asks of a loop

    def time(self) -> float:
        return self._clock.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._arranged:
            self._arrange()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._clock.call_at(max(when, self._clock.now), partial(self._due, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays where it is, and is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Result], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Result]:
        given: dict[str, Any] = {} if context is None else {"context": context}
        task = asyncio.Task(coro, loop=self, **given) if self._factory is None else self._factory(self, coro, **given)
        self.tasks.append(task)
        return task

    def _numbered(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **given: Any) -> Any:
        task = NumberedTask(coro, loop=loop, **given)
        task.number = len(self.tasks)
        return task

    def set_task_factory(self, factory: Callable[..., Any] | None) -> None:
        self._factory = factory

    def get_task_factory(self) -> Callable[..., Any] | None:
        return self._factory

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    def close(self) -> None:
        """Tasks that still wait will never go on."""
        for task in self.tasks:
            if not task.done():
                with suppress(Exception):
                    task.get_coro().close()

    # -- turns

    def _due(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled():
            self._ready.append(timer)
            if not self._arranged:
                self._arrange()

    def _arrange(self) -> None:
        self._arranged = True
        self._clock.call_later(self._turn_seconds * self._chance(), self._turn)

    def _turn(self) -> None:
        """What is ready now; what becomes ready by that has the next turn."""
        if self._host.frozen:
            self._host.defer(self._turn)
            return
        ready = self._ready
        asyncio._set_running_loop(self)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
        asyncio._set_running_loop(None)
        self._arranged = False
        if ready:
            self._arrange()
