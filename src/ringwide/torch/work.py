"""Work of torch.distributed: handle of an operation under way.

Rules, each learnt from a crash:
- An operation that fails never raises where it is called: inside a backward pass that would break the DDP object for
  good. Its work raises instead, when somebody waits for it.
- DDP waits for the work's future, not for the work, and a future that is given an exception ends the process. So ours
  succeeds without a value, and the future we hand out is chained to it (`then`) and raises there.
- The callbacks of a future run on the thread that completes it, and may wait for another operation. So that thread is
  never the loop's.
"""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from itertools import count
from types import CodeType, FunctionType
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch._C._dynamo import eval_frame

from ringwide.runtime.background_loop import BackgroundLoop
from ringwide.runtime.loop_call import LoopCall
from ringwide.torch.callback_threads import run_in_thread

NO_TIMEOUT = timedelta(0)
_GIVEN_UP = "this rank has given it up"  # Ctrl-C has no text of its own


class WaitTimeout(RuntimeError, TimeoutError):
    """wait() timed out; the operation continues. A RuntimeError, as with other backends."""


class OperationTimeout(TimeoutError, RuntimeError):
    """An operation did not end within the timeout of its own, and was given up. Other ranks get `CollectiveAborted`."""


class RingWork(Work):
    """Handle of one operation of a group, or of several that were coalesced."""

    def __init__(self, pendings: Sequence[LoopCall[Any]], tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._pendings, self._tensors = pendings, tensors

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the end. An interrupt gives up unfinished operations, and is raised once they have ended."""
        try:
            seconds = timeout.total_seconds() if timeout > NO_TIMEOUT else None
            ended = self._settle(seconds)
        except BaseException:
            for pending in self._pendings:
                pending.give_up()
            raise
        if not ended:
            raise WaitTimeout(f"the operation timed out: it has not ended within {seconds:g} s; it continues")
        for pending in self._pendings:
            pending.result()
        return True

    def _settle(self, seconds: float | None) -> bool:
        until = None if seconds is None else time.monotonic() + seconds
        return all(pending.settle(until and until - time.monotonic()) for pending in self._pendings)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(pending.done for pending in self._pendings)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return next((pending.error for pending in self._pendings if pending.error is not None), None)

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def source_rank(self) -> int:
        """Sender of a message received from any source."""
        return int(self._pendings[0].wait())

    _source_rank = source_rank

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        """Future of this work, always the same one. There is no lock: a finalizer may call this at any point."""
        mine = vars(self)
        future: torch.futures.Future[list[torch.Tensor]] = mine.get("future") or mine.setdefault(
            "future", self._make_future()
        )
        return future

    def _make_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        ended: torch.futures.Future[None] = torch.futures.Future()
        when_all_done(self._pendings, lambda: run_in_thread(lambda: ended.set_result(None)))
        return ended.then(self._outcome)

    def _outcome(self, _: object) -> list[torch.Tensor]:
        error = self.exception()
        if error is not None:
            raise RuntimeError(f"{type(error).__name__}: {str(error) or _GIVEN_UP}") from error
        return self._tensors


def when_all_done(pendings: Sequence[LoopCall[Any]], callback: Callable[[], object]) -> None:
    """Call `callback` once, on the thread that completes the last one."""
    ended = count(1)  # atomic without a lock

    def one_done() -> None:
        if next(ended) == len(pendings):
            callback()

    for pending in pendings:
        pending.when_done(one_done)
    if not pendings:
        callback()


Begin = Callable[[], Coroutine[Any, Any, Any]]


def limited(title: str, begin: Begin, timeout: timedelta) -> Begin:
    """Have an operation given up after a timeout of its own, with gloo's words for it."""
    seconds = timeout.total_seconds()

    async def ended_in_time(call: Coroutine[Any, Any, Any]) -> Any:
        try:
            await asyncio.sleep(0)  # from here on this is a task, which can be cancelled; the call has begun already
            async with asyncio.timeout(seconds):
                return await call
        except TimeoutError:
            raise OperationTimeout(f"{title}: Timed out waiting {1000 * seconds:g}ms, its own timeout") from None
        finally:
            call.close()

    return lambda: ended_in_time(begin())


# -- profilers and compilers


def recorded(title: str, begin: Begin, tensors: Sequence[torch.Tensor]) -> Begin:
    """Have the profiler of this thread see an operation: from now until its call ends, on the loop's thread.

    What makes the profiler take note there is a future: its callbacks know which profiler this thread had.
    """
    record = torch._C._autograd._record_function_with_args_enter(title, *tensors)
    ended: torch.futures.Future[None] = torch.futures.Future()
    torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, ended)

    async def observed(call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await call
        finally:
            ended.set_result(None)

    def begin_recorded() -> Coroutine[Any, Any, Any]:
        try:
            return observed(begin())
        except BaseException:
            ended.set_result(None)
            raise

    return begin_recorded


def keep_from_compilers(*classes: type) -> None:
    """Have torch.compile call the methods of these classes, and not look into them or what they call.

    This is what `torch._dynamo.disable` does, but it takes no second call, and does not import the compiler.
    """
    for function in [value for one in classes for value in vars(one).values() if isinstance(value, FunctionType)]:
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        _skip_frames_of(function.__code__)


def _skip_frames_of(code: CodeType) -> None:
    """torch calls some methods from C++, in the middle of what is compiled: then a frame of theirs comes first."""
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))
    elif hasattr(eval_frame, "skip_code"):  # before torch 2.7
        eval_frame.skip_code(code)


# -- Ctrl-C


class _InterruptWatch:
    """Cancels the calls of a loop on Ctrl-C, through the wake-up descriptor of this process.

    A main thread that waits in C++ runs no Python signal handler until the wait is over.
    """

    def __init__(self, background_loop: BackgroundLoop) -> None:
        self._here, self._there = socket.socketpair()
        for end in (self._here, self._there):
            end.setblocking(False)
        self._background = background_loop
        background_loop.loop.call_soon_threadsafe(background_loop.loop.add_reader, self._here.fileno(), self._on_signal)
        before = signal.set_wakeup_fd(self._there.fileno(), warn_on_full_buffer=False)
        self._installed = before == -1
        if not self._installed:
            signal.set_wakeup_fd(before)

    def _on_signal(self) -> None:
        numbers = self._here.recv(4096)
        if signal.SIGINT in numbers and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._background.cancel_calls()

    def stop(self) -> None:
        """Remove the watch after its loop has ended. Not in a forked child, which shares its parent's poll object."""
        self._background.loop.remove_reader(self._here.fileno())
        self.remove()

    def remove(self) -> None:
        """Restore the wake-up descriptor; in a forked child too, whose Ctrl-C must not cancel its parent's calls."""
        if self._installed:
            before = signal.set_wakeup_fd(-1)
            if before != self._there.fileno():  # the program has set its own meanwhile
                signal.set_wakeup_fd(before)
        for end in (self._here, self._there):
            end.close()


_watches: dict[BackgroundLoop, _InterruptWatch] = {}


def end_calls_at_interrupts(background_loop: BackgroundLoop) -> None:
    """Install the watch for this loop, from the main thread only: no other thread may set the wake-up descriptor."""
    if threading.current_thread() is threading.main_thread() and background_loop not in _watches:
        for ended in [loop for loop in _watches if loop.over]:
            _watches.pop(ended).stop()
        _watches[background_loop] = _InterruptWatch(background_loop)


def _forget_in_child() -> None:
    for watch in _watches.values():
        watch.remove()
    _watches.clear()


os.register_at_fork(after_in_child=_forget_in_child)
