"""One event loop in a thread of its own, for programs that have none. All rings of a process share it.

A program hands a coroutine to `Background.start` and gets a `Pending`, on which any thread may wait. Calls of a ring
begin in the order in which they were handed over, each as far as it gets before it waits: so the collectives of a
process are numbered in the order of its calls, as the other ranks expect.

Nobody waits for a loop that has ended: at the end of the program, or in a forked child, which has none of its parent's
threads. What is asked of it then fails with `RingClosed`, and so does what it has not finished.
"""

import asyncio
import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, TypeVar

import uvloop

from ringwide.errors import RingClosed
from ringwide.pending import Pending

logger = logging.getLogger("ringwide.background")
T = TypeVar("T")
Close = Callable[[BaseException | None], Coroutine[Any, Any, object]]

_PYTHONS_SWITCH_SECONDS = 0.005
_SWITCH_SECONDS = 0.0002
"""A thread that computes in Python keeps the interpreter for so long while the loop waits for it. Python's own 5 ms
would be added to every message; a program that has chosen another value keeps it."""
_LEAVE_SECONDS = 2.0
_BEFORE_OTHERS = 100


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
