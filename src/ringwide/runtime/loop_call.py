"""Loop call: a call that another thread waits for, made and carried out on the loop's thread, ended once.

Rules:
- The ring's method is called on the loop's thread, in the order in which callers have handed over (`begin`).
- Handing over is one operation of the loop, in C: whatever interrupts the caller comes before it or after it. From then
  on the loop's thread owns the call, and no signal handler runs there.
- A caller that is interrupted (Ctrl-C, or any signal handler that raises) gives the call up and stays until it has
  ended: then nothing writes to its tensors any more. Interrupts that come meanwhile are raised then.
- Nobody waits on the loop's own thread: it would wait for itself.
- No locks that two share: a finalizer or a signal handler may run in the middle of anything, on the same thread.
"""

import asyncio
import ctypes
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from ringwide.errors import RingClosed, fresh
from ringwide.runtime.caller_identity import Behalf, acting_for

_python = ctypes.CDLL(None)  # unlike ctypes.pythonapi it lets other threads run meanwhile
_allocate, _acquire, _release = (
    getattr(_python, f"PyThread_{name}_lock") for name in ("allocate", "acquire", "release")
)
_allocate.restype = ctypes.c_void_p
_acquire.argtypes = [ctypes.c_void_p, ctypes.c_int]
_release.argtypes = [ctypes.c_void_p]
_release.restype = None
_spare: dict[str, int] = {}  # one is enough, unless a signal handler makes calls of its own

wait_whatever_comes = _acquire
"""wait_whatever_comes(latch, 1): returns when it is open. One call of C, after which handlers of signals may run."""


def take_latch() -> int | None:
    """One that is shut, for the main thread. Other threads are not interrupted by signals, and need none."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return _spare.pop("latch", None) or _new_latch()


def _new_latch() -> int:
    latch: int = _allocate()
    _acquire(latch, 1)
    return latch


def open_latch(latch: int) -> None:
    """For good: it must not be put back."""
    _release(latch)


def put_back(latch: int | None) -> None:
    """It is still shut, and nobody will open it."""
    if latch is not None:
        _spare["latch"] = latch


logger = logging.getLogger("ringwide.runtime")
T = TypeVar("T")
Begin = Callable[[], Coroutine[Any, Any, T]]
"""begin(): the coroutine of a call, made on the loop's thread."""


class LoopHome:
    """A loop, what is under way on it or on its way there, and why it is over, if it is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.under_way: set[LoopCall[Any]] = set()
        self.debug = loop.get_debug()
        self.ending = False  # what is handed over from now on may not be seen any more
        self.over: RingClosed | None = None

    def is_here(self) -> bool:
        """Is this the loop's own thread?"""
        return asyncio._get_running_loop() is self.loop

    def drain(self) -> None:
        """The loop is about to end: let it do what was handed over until now."""
        self.ending = True
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def end(self, why: RingClosed, *, quietly: bool = False) -> None:
        """Whoever hands something over either sees that it is over, or is seen here."""
        self.over = why
        for pending in list(self.under_way):
            pending.fail(why, quietly=quietly)


class LoopCall(Generic[T]):
    """A call, and what became of it. `caller` is the thread that has made it."""

    __slots__ = (
        *("_as_task", "_begun", "_by_hand", "_callbacks", "_cancel_later", "_coroutine", "_error", "_has_ended"),
        *("_home", "_make", "_on_error", "_result", "_task", "_waits_for", "caller"),
    )

    def __init__(
        self,
        begin: Begin[T],
        home: LoopHome,
        *,
        as_task: bool = False,
        by_hand: bool = False,
        on_error: Callable[[BaseException], object] | None = None,
    ) -> None:
        self.caller = threading.current_thread()
        self._make, self._home, self._as_task = begin, home, as_task
        self._by_hand, self._on_error = by_hand, on_error
        self._begun = self._has_ended = self._cancel_later = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._coroutine: Coroutine[Any, Any, T] | None = None
        self._task: asyncio.Task[T] | None = None
        self._waits_for: asyncio.Future[object] | None = None

    @property
    def is_call(self) -> bool:
        """Of a ring, that is; not something about rings that takes its time."""
        return not self._as_task

    # -- from any thread

    def hand_over(self) -> None:
        """Have it begun by the loop, behind what was handed over before. To do it twice does no harm."""
        if self._begun or self._has_ended:
            return
        self._home.under_way.add(self)
        if self._home.over is None:
            self._home.loop.call_soon_threadsafe(self.begin)
        else:
            self.fail(self._home.over)

    def wait(self, seconds: float | None = None) -> T:
        """What it returned or raised. `TimeoutError`: it has not ended. It goes on, also if the wait is interrupted."""
        self._require_another_thread()
        if not self._wait_for_the_end(seconds):
            raise TimeoutError(f"it has not ended within {seconds:g} s")
        return self._outcome()

    def result(self, seconds: float | None = None) -> T:
        """As `wait`, for a call that belongs to whoever waits: it is handed over here, if nobody has, and `settle`d."""
        if not self.settle(seconds):
            raise TimeoutError(f"it has not ended within {seconds:g} s")
        return self._outcome()

    def settle(self, seconds: float | None = None) -> bool:
        """Stay until it has ended. Has it, in that time? An interrupt gives it up, and is raised when it is over."""
        self._require_another_thread()
        latch, later = take_latch(), None
        try:
            self.hand_over()
            ended = self._wait_for_the_end(seconds)
        except BaseException:
            # The interpreter heeds signals where functions begin, loops turn and after calls: here, nowhere else.
            if latch is None or self._home.debug:
                self.give_up()
            elif not self._has_ended:
                try:
                    self._home.loop.call_soon_threadsafe(self._cancel_and_open, latch)
                except BaseException as error:  # by a signal, when that was done
                    later = error
                if self._home.ending:
                    self.give_up()
                else:
                    wait_whatever_comes(latch, 1)
            if later is not None:
                raise later  # noqa: B904 - the first interrupt is its context
            raise
        put_back(latch)
        return ended

    def _outcome(self) -> T:
        if self._error is not None:
            raise fresh(self._error)
        return self._result  # type: ignore[return-value]

    def _require_another_thread(self) -> None:
        if not self._has_ended and self._home.is_here():
            raise RuntimeError(
                "this is the thread of the loop on which rings live: who waits here for a call waits for itself; "
                "wait in another thread"
            )

    def _wait_for_the_end(self, seconds: float | None = None) -> bool:
        """With a lock of one's own: who is interrupted takes nothing away from others."""
        if self._has_ended:
            return True
        ended = threading.Lock()
        ended.acquire()
        self.when_done(ended.release)
        if ended.acquire(timeout=-1 if seconds is None else max(0.0, seconds)):
            return True
        with suppress(ValueError):  # it has ended after all
            self._callbacks.remove(ended.release)
        return self._has_ended

    def give_up(self) -> None:
        """Cancel it and stay until it has ended, whatever is raised here meanwhile: that is raised then."""
        latest: BaseException | None = None
        while not self._has_ended:
            try:
                if self._home.over is not None:
                    self.fail(self._home.over)
                else:
                    self.cancel()
                    self._wait_for_the_end()
            except BaseException as error:
                latest = error
        try:
            if latest is not None:
                raise latest
        finally:
            del latest

    @property
    def done(self) -> bool:
        return self._has_ended

    @property
    def error(self) -> BaseException | None:
        """Why it failed, if it has ended and failed."""
        return None if self._error is None else fresh(self._error)

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call this on the loop's thread when it has ended, or now if it has."""
        self._callbacks.append(callback)
        if self._has_ended:
            try:
                self._callbacks.remove(callback)
            except ValueError:  # the loop has seen it
                return
            callback()

    def cancel(self) -> None:
        """It ends with `CancelledError`, soon, unless it ends by itself before that."""
        self._home.loop.call_soon_threadsafe(self._cancel)

    def fail(self, error: BaseException, *, quietly: bool = False) -> None:
        """There is no loop any more on which it could end. `quietly`: nobody is called back."""
        if quietly:
            self._callbacks.clear()
        self._end(None, error)

    # -- on the loop's thread

    def begin(self) -> None:
        """Up to its first wait this happens at once. A task would begin in the next round, behind others."""
        if self._begun or self._has_ended:
            return
        self._begun = True
        self._home.under_way.add(self)  # perhaps its caller was interrupted before that
        try:
            self._coroutine = self._call()
        except BaseException as error:
            self._end(None, error)
            return
        if self._as_task:
            self._go_on_as_task()
        else:
            self._step()

    def _call(self) -> Coroutine[Any, Any, T]:
        """The one place where a ring's method is called for another thread, which is `self.caller`."""
        make = self._make
        del self._make  # it has the tensors
        token = acting_for.set(Behalf(self.caller))
        try:
            return make()
        finally:
            acting_for.reset(token)

    def _step(self, _: object = None) -> None:
        self._waits_for = None
        assert self._coroutine is not None
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
                awaited.add_done_callback(self._step if self._by_hand else self._go_on_as_task)
                if self._cancel_later:
                    self._cancel()
            else:
                self._go_on_as_task()

    def _go_on_as_task(self, _: object = None) -> None:
        """Deadlines and cancelling need a task."""
        self._waits_for = None
        assert self._coroutine is not None
        self._task = self._home.loop.create_task(self._coroutine)
        self._task.add_done_callback(self._take)
        if self._cancel_later:
            self._cancel()

    def _take(self, task: "asyncio.Task[T]") -> None:
        try:
            self._end(task.result(), None)
        except BaseException as error:
            self._end(None, error)

    def _cancel(self) -> None:
        if not self._begun:  # the caller was interrupted while it handed over: it is a call all the same
            self._cancel_later = True
            self.begin()
        elif self._task is not None:
            self._task.cancel()
        elif self._waits_for is not None and not self._waits_for.done():
            self._waits_for.cancel()
        elif self._waits_for is None or not self._waits_for.cancelled():
            self._cancel_later = True  # what it waited for is there, and it has not gone on yet

    def _cancel_and_open(self, latch: int) -> None:
        self._cancel()
        self.when_done(partial(open_latch, latch))

    def _end(self, result: T | None, error: BaseException | None) -> None:
        if self._has_ended:  # the loop is over, and somebody else has ended this for it
            return
        self._coroutine = self._task = None
        if error is not None:
            self._error = fresh(error)
            if self._on_error is not None:
                self._on_error(fresh(error))
        self._result = result
        self._has_ended = True
        self._home.under_way.discard(self)
        with suppress(IndexError):  # another thread was faster
            while self._callbacks:
                _call_back(self._callbacks.pop(0))


def _call_back(callback: Callable[[], object]) -> None:
    """Others wait behind it, so it must not fail here."""
    try:
        callback()
    except Exception:
        logger.exception("what was to follow a call has failed")
