"""One event loop in a thread of its own, for programs that have none. All rings of a process share it.

A program hands a coroutine to `Background.start` and gets a `Pending`, on which any thread may wait. Calls of a ring
begin in the order in which they were handed over, each as far as it gets before it waits: so the collectives of a
process are numbered in the order of its calls, as the other ranks expect.

Nobody waits for a loop that has ended: at the end of the program, or in a forked child, which has none of its parent's
threads. What is asked of it then fails with `RingClosed`, and so does what it has not finished.
"""

import asyncio
import atexit
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, Generic, TypeVar

import uvloop

from ringwide.errors import RingClosed

logger = logging.getLogger("ringwide.background")
T = TypeVar("T")
Close = Callable[[BaseException | None], Coroutine[Any, Any, object]]

_PYTHONS_SWITCH_SECONDS = 0.005
_SWITCH_SECONDS = 0.0002
"""A thread that computes in Python keeps the interpreter for so long while the loop waits for it. Python's own 5 ms
would be added to every message; a program that has chosen another value keeps it."""
_LEAVE_SECONDS = 2.0
_BEFORE_OTHERS = 100


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


class Background:
    """The loop, its thread, and what must be closed before the program ends."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._calls: set[Pending[Any]] = set()  # under way, or on their way to the loop
        self._tasks: set[Pending[Any]] = set()
        self._over: RingClosed | None = None
        self._to_close: dict[object, Close] = {}
        self._thread = threading.Thread(target=self._run, name="ringwide", daemon=True)
        if sys.getswitchinterval() == _PYTHONS_SWITCH_SECONDS:
            sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self._end_all(RingClosed("this ring ended with the program, or with the loop that it lived on"))

    def _end_all(self, why: RingClosed, *, quietly: bool = False) -> None:
        """Whoever starts something either sees that it is over, or is seen here."""
        self._over = why
        for pending in [*self._calls, *self._tasks]:
            pending.fail(why, quietly=quietly)

    def start(
        self,
        coroutine: Coroutine[Any, Any, T],
        *,
        by_hand: bool = False,
        on_error: Callable[[BaseException], object] | None = None,
    ) -> Pending[T]:
        """A call of a ring. `by_hand`: it has no deadlines inside, so it can do without a task, which takes longer."""
        pending = Pending(coroutine, self.loop, self._calls, by_hand=by_hand, on_error=on_error)
        self._hand_over(pending, pending.begin)
        return pending

    def start_task(self, coroutine: Coroutine[Any, Any, T]) -> Pending[T]:
        """Anything else."""
        pending = Pending(coroutine, self.loop, self._tasks)
        self._hand_over(pending, pending.begin_as_task)
        return pending

    def _hand_over(self, pending: Pending[Any], begin: Callable[[], None]) -> None:
        if self._over is None:
            self.loop.call_soon_threadsafe(begin)
        else:
            pending.fail(self._over)

    def cancel_calls(self) -> None:
        """On the loop's thread: give up all calls of rings."""
        for pending in list(self._calls):
            pending.cancel()

    def close_at_exit(self, key: object, close: Close) -> None:
        """Unless somebody has closed it before the program ends: `close_now`. It is told of what the program died."""
        self._to_close[key] = close

    def close_now(self, key: object, error: BaseException | None = None) -> None:
        """Wait until it is closed, because of an error perhaps. Nothing is to be done if it is closed already."""
        close = self._to_close.pop(key, None)
        if close is not None:
            self.start_task(close(error)).wait()

    def close(self) -> None:
        """At the end of the program: others hear a goodbye, and do not take this for a crash, nor a crash for this."""
        uncaught = _uncaught()
        for key in list(self._to_close):
            close = self._to_close.pop(key)
            try:
                self.start_task(close(uncaught)).wait(_LEAVE_SECONDS)
            except Exception as error:
                logger.warning("left in a hurry: %s", error)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_LEAVE_SECONDS)

    def be_gone(self) -> None:
        """In a forked child: the loop's thread is its parent's, and so is whatever lives on it."""
        self._to_close.clear()
        self._end_all(RingClosed("this ring is that of the process from which this one was forked"), quietly=True)


_current: Background | None = None
_last_acts: list[Callable[[], object]] = []
_lock = threading.Lock()


def background() -> Background:
    """The one of this process."""
    global _current
    with _lock:
        if _current is None:
            _current = Background()
            _close_with_a_child()
        return _current


def _close_with_a_child() -> None:
    """A process of multiprocessing has an end of its own: some have no atexit, others one that knows of no error."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        import_module("multiprocessing.util").Finalize(None, _close_current, exitpriority=_BEFORE_OTHERS)


def _uncaught() -> BaseException | None:
    """What the program dies of. In a process of multiprocessing it is on its way; torch makes an exit of it."""
    error: BaseException | None = getattr(sys, "last_value", None) or sys.exc_info()[1]
    if isinstance(error, SystemExit):
        return (error.__context__ or error) if error.code else None
    return error


def at_the_end(act: Callable[[], object]) -> None:
    """Have it done at the end of the program, when all rings have been left."""
    _last_acts.append(act)


def _close_current() -> None:
    global _current
    with _lock:
        ended, _current = _current, None
    if ended is not None:
        ended.close()
        for act in _last_acts:
            act()


def _forget_in_child() -> None:
    """A forked child has no thread but its own; it gets a loop of its own when it asks for one."""
    global _current, _lock
    if _current is not None:
        _current.be_gone()
    _current, _lock = None, threading.Lock()


atexit.register(_close_current)
os.register_at_fork(after_in_child=_forget_in_child)
