"""A coroutine that other threads wait for: begun by the loop's thread, driven by hand or as a task, ended once."""

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

logger = logging.getLogger("ringwide.background")
T = TypeVar("T")


class Pending(Generic[T]):
    """A coroutine under way on the loop, and what became of it."""

    __slots__ = (
        *("_by_hand", "_callbacks", "_cancel_later", "_coroutine", "_ended", "_error", "_has_ended"),
        *("_loop", "_on_error", "_result", "_task", "_under_way", "_waits_for"),
    )

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        loop: asyncio.AbstractEventLoop,
        under_way: "set[Pending[Any]]",
        *,
        by_hand: bool = False,
        on_error: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._coroutine, self._loop, self._under_way = coroutine, loop, under_way
        self._by_hand, self._on_error = by_hand, on_error
        self._ended = threading.Lock()
        self._ended.acquire()
        self._has_ended = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._task: asyncio.Task[T] | None = None
        self._waits_for: asyncio.Future[object] | None = None
        self._cancel_later = False
        under_way.add(self)

    # -- from any thread

    def wait(self, seconds: float | None = None) -> T:
        """What the coroutine returned or raised. `TimeoutError`: it has not ended, and goes on."""
        if not self._has_ended:
            if seconds is None:
                self._wait_for_the_end()
            elif not self._ended.acquire(timeout=seconds):
                raise TimeoutError(f"it has not ended within {seconds:g} s")
            else:
                self._ended.release()  # for others who wait
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def _wait_for_the_end(self) -> None:
        with self._ended:  # unlike with `acquire` and `release`, no Ctrl-C comes between: others may wait as well
            pass

    @property
    def done(self) -> bool:
        return self._has_ended

    @property
    def error(self) -> BaseException | None:
        """Why it failed, if it has ended and failed."""
        return self._error

    def result(self) -> T:
        """Wait for it. Who is interrupted meanwhile (Ctrl-C) leaves nothing half done."""
        try:
            return self.wait()
        except BaseException:
            if not self._has_ended:
                self.cancel()
                self._wait_for_the_end()
            raise

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call this on the loop's thread when it has ended, or now if it has."""
        self._callbacks.append(callback)
        if self._has_ended:  # perhaps the loop has not seen it any more
            self._call_back()

    def cancel(self) -> None:
        """It ends with `CancelledError`, soon, unless it ends by itself before that."""
        self._loop.call_soon_threadsafe(self._cancel)

    def fail(self, error: BaseException, *, quietly: bool = False) -> None:
        """There is no loop any more on which it could end. `quietly`: nobody is called back."""
        if quietly:
            self._callbacks.clear()
        if inspect.getcoroutinestate(self._coroutine) == inspect.CORO_CREATED:
            self._coroutine.close()  # else Python complains that nobody has awaited it
        self._end(None, error)

    # -- on the loop's thread

    def begin(self) -> None:
        """Up to its first wait this happens at once. A task would begin in the next round, behind others."""
        self._step()

    def _step(self, _: object = None) -> None:
        self._waits_for = None
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as stop:
            self._end(stop.value, None)
        except BaseException as error:
            self._end(None, error)
        else:
            if isinstance(awaited, asyncio.Future):
                awaited._asyncio_future_blocking = False
                self._waits_for = awaited
                awaited.add_done_callback(self._step if self._by_hand else self.begin_as_task)
                if self._cancel_later:
                    self._cancel()
            else:
                self.begin_as_task()

    def begin_as_task(self, _: object = None) -> None:
        """Or go on as one: deadlines and cancelling need a task."""
        self._waits_for = None
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._take)
        if self._cancel_later:
            self._cancel()

    def _take(self, task: "asyncio.Task[T]") -> None:
        try:
            self._end(task.result(), None)
        except BaseException as error:
            self._end(None, error)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif self._waits_for is not None and not self._waits_for.done():
            self._waits_for.cancel()
        elif self._waits_for is None or not self._waits_for.cancelled():
            self._cancel_later = True  # what it waited for is there, and it has not gone on yet

    def _end(self, result: T | None, error: BaseException | None) -> None:
        try:
            self._under_way.remove(self)
        except KeyError:  # the loop is over, and somebody else has ended this for it
            return
        if error is not None and self._on_error is not None:
            self._on_error(error)
        self._result, self._error = result, error
        self._has_ended = True
        self._ended.release()
        self._call_back()

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # another thread was faster
                return
            callback()
