"""Background event loop in a thread of its own, for programs without one. All rings of a process share it.

A program hands over a function that is called on the loop's thread and makes the coroutine of a call. It waits for the
result (`BackgroundLoop.call`), or gets a `LoopCall`, on which any thread may wait. Calls of a ring are made there in
the order in which they were handed over, and each begins at once. So the collectives of a process are numbered in
the order of its calls, as the other ranks expect.

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
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from importlib import import_module
from typing import Any, TypeVar

import uvloop

from ringwide.errors import RingClosed
from ringwide.runtime.loop_call import Begin, LoopCall, LoopHome

logger = logging.getLogger("ringwide.runtime")
T = TypeVar("T")
Close = Callable[[BaseException | None], Coroutine[Any, Any, object]]

_PYTHONS_SWITCH_SECONDS = 0.005
_SWITCH_SECONDS = 0.0002
"""A thread that computes in Python keeps the interpreter for so long while the loop waits for it. Python's own 5 ms
would be added to every message; a program that has chosen another value keeps it."""
_LEAVE_SECONDS = 2.0
_BEFORE_OTHERS = 100


class BackgroundLoop:
    """The loop, its thread, and what must be closed before the program ends."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._home = LoopHome(self.loop)
        self._to_close: dict[object, Close] = {}
        self._closing: set[LoopCall[Any]] = set()  # nobody waits for these
        self._thread = threading.Thread(target=self._run, name="ringwide", daemon=True)
        if sys.getswitchinterval() == _PYTHONS_SWITCH_SECONDS:
            sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self._end(RingClosed("this ring ended with the program, or with the loop that it lived on"))

    def _end(self, why: RingClosed) -> None:
        try:
            self._home.drain()
        finally:
            self._home.end(why)

    @property
    def over(self) -> bool:
        """Has the loop ended?"""
        return self._home.over is not None

    def call(self, begin: Begin[T], *, by_hand: bool = False) -> T:
        """A call of a ring, and what it returns. An interrupt gives it up, and is raised when it has ended."""
        return LoopCall(begin, self._home, by_hand=by_hand).result()

    def pending(
        self, begin: Begin[T], *, by_hand: bool = False, on_error: Callable[[BaseException], object] | None = None
    ) -> LoopCall[T]:
        """A call of a ring that has still to be handed over.

        `by_hand`: it has no deadlines inside, so it can do without a task, which takes longer.
        """
        return LoopCall(begin, self._home, by_hand=by_hand, on_error=on_error)

    def start(self, begin: Begin[T], *, by_hand: bool = False) -> LoopCall[T]:
        """A call of a ring, under way."""
        pending = self.pending(begin, by_hand=by_hand)
        pending.hand_over()
        return pending

    def start_task(self, begin: Begin[T]) -> LoopCall[T]:
        """Anything else."""
        pending = LoopCall(begin, self._home, as_task=True)
        pending.hand_over()
        return pending

    def cancel_calls(self) -> None:
        """On the loop's thread: give up all calls of rings."""
        for pending in list(self._home.under_way):
            if pending.is_call:
                pending.cancel()

    def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter it on the loop. It is left by `close_now(manager)`, or at the end of the program."""

        async def enter() -> T:
            entered = await manager.__aenter__()
            self.close_at_exit(manager, leave)
            return entered

        async def leave(error: BaseException | None) -> None:
            # The error is for the program's own thread: out of here an interrupt or an exit would end the loop.
            with suppress(BaseException) if error is not None else nullcontext():
                await manager.__aexit__(type(error) if error else None, error, None)

        return LoopCall(enter, self._home, as_task=True).result()

    def close_at_exit(self, key: object, close: Close) -> None:
        """Unless somebody has closed it before the program ends: `close_now`. It is told of what the program died."""
        self._to_close[key] = close

    def close_now(self, key: object, error: BaseException | None = None) -> None:
        """Wait until it is closed, because of an error perhaps. Nothing is to be done if it is closed already."""
        if key not in self._to_close or self.over:
            return
        if self._home.is_here():
            self.close_soon(key, error)
        else:
            self.start_task(lambda: self._close(key, error)).wait()

    def close_soon(self, key: object, error: BaseException | None = None) -> None:
        """As `close_now`, for finalizers: nobody knows what their thread is in the middle of, so they do not wait."""
        pending = self.start_task(lambda: self._close(key, error))
        self._closing.add(pending)
        pending.when_done(lambda: self._closing.discard(pending))

    async def _close(self, key: object, error: BaseException | None) -> None:
        close = self._to_close.pop(key, None)
        if close is not None:
            await close(error)

    def close(self) -> None:
        """At the end of the program: others hear a goodbye, and do not take this for a crash, nor a crash for this."""
        uncaught = _uncaught()
        seconds = None if uncaught is None else _LEAVE_SECONDS  # who is done stays until the others have what it sent
        for key in list(self._to_close):
            self._wait_for(self.start_task(lambda key=key: self._close(key, uncaught)), seconds)  # type: ignore[misc]
        for pending in list(self._closing):
            self._wait_for(pending, _LEAVE_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_LEAVE_SECONDS)

    def _wait_for(self, closing: LoopCall[None], seconds: float | None) -> None:
        try:
            closing.wait(seconds)
        except (Exception, KeyboardInterrupt) as error:
            logger.warning("left in a hurry: %s", error)

    def be_gone(self) -> None:
        """In a forked child: the loop's thread is its parent's, and so is whatever lives on it."""
        self._to_close.clear()
        self._home.end(RingClosed("this ring is that of the process from which this one was forked"), quietly=True)


_loops: list[BackgroundLoop] = []  # the last one is in use; the others, if any, have ended
_last_acts: list[Callable[[], object]] = []


def background() -> BackgroundLoop:
    """The one of this process; a new one if that has ended.

    Without a lock, which a finalizer or a signal handler could find held by its own thread: if two threads are the
    first at the same time, one of the two loops stays idle.
    """
    while not _loops or _loops[-1].over:
        _drop_those_that_ended()
        _loops.append(BackgroundLoop())
        _close_with_a_child()
    return _loops[-1]


def _drop_those_that_ended() -> None:
    for ended in [loop for loop in _loops if loop.over]:
        with suppress(ValueError):  # another thread was faster
            _loops.remove(ended)


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
    any_here = bool(_loops)
    while _loops:
        _loops.pop().close()
    if any_here:
        for act in _last_acts:
            act()


def _forget_in_child() -> None:
    """A forked child has no thread but its own; it gets a loop of its own when it asks for one."""
    for loop in _loops:
        loop.be_gone()
    _loops.clear()


atexit.register(_close_current)
os.register_at_fork(after_in_child=_forget_in_child)
