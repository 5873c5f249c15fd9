"""What torch.distributed gives for an operation under way.

Rules, each learnt from a crash:
- An operation that fails never raises where it is called: inside a backward pass that would ruin the DDP object for
  good. Its work fails instead, when somebody waits for it.
- DDP waits for the work's future, not for the work, and a future that was given an exception ends the process. So ours
  succeeds with nothing, and the one we hand out follows it (`then`) and raises there.
- What follows a future is done by whoever makes it succeed, and may wait for another operation: so never by the loop's
  thread.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from ringwide.runtime.background_loop import BackgroundLoop
from ringwide.runtime.loop_call import LoopCall
from ringwide.torch.callback_threads import follow


class _Doorbell:
    """The wake-up descriptor of this process."""

    def __init__(self, behind: BackgroundLoop) -> None:
        self._here, self._there = socket.socketpair()
        for end in (self._here, self._there):
            end.setblocking(False)
        self._behind = behind
        behind.loop.call_soon_threadsafe(behind.loop.add_reader, self._here.fileno(), self._hear)
        before = signal.set_wakeup_fd(self._there.fileno(), warn_on_full_buffer=False)
        self._rings = before == -1
        if not self._rings:
            signal.set_wakeup_fd(before)

    def _hear(self) -> None:
        numbers = self._here.recv(4096)
        if signal.SIGINT in numbers and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._behind.cancel_calls()

    def no_longer_rings(self) -> None:
        """When its loop has ended. Not in a forked child: what polls there is its parent's as well."""
        self._behind.loop.remove_reader(self._here.fileno())
        self.take_away()

    def take_away(self) -> None:
        """Its loop has ended, or this is a forked child: a Ctrl-C there would end calls of its parent."""
        if self._rings:
            before = signal.set_wakeup_fd(-1)
            if before != self._there.fileno():  # the program has set another one meanwhile
                signal.set_wakeup_fd(before)
        for end in (self._here, self._there):
            end.close()


_doorbells: dict[BackgroundLoop, _Doorbell] = {}


def end_calls_at_interrupts(behind: BackgroundLoop) -> None:
    """Outside the main thread nobody can listen for signals."""
    if threading.current_thread() is threading.main_thread() and behind not in _doorbells:
        for ended in [loop for loop in _doorbells if loop.over]:
            _doorbells.pop(ended).no_longer_rings()
        _doorbells[behind] = _Doorbell(behind)


def _forget_in_child() -> None:
    for doorbell in _doorbells.values():
        doorbell.take_away()
    _doorbells.clear()


os.register_at_fork(after_in_child=_forget_in_child)


_NO_TIMEOUT = timedelta(0)
_GIVEN_UP = "this rank has given it up"  # Ctrl-C, and it has no words


class WaitTimeout(RuntimeError, TimeoutError):
    """`work.wait(timeout)` was over before the work. A RuntimeError, as with other backends."""


class RingWork(Work):
    """One operation of a group, or several that were asked for together."""

    def __init__(self, pendings: Sequence[LoopCall[Any]], tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._pendings, self._tensors = pendings, tensors

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """An interrupt gives up what has not ended, and is raised when that is over."""
        try:
            seconds = timeout.total_seconds() if timeout > _NO_TIMEOUT else None
            ended = self._settle(seconds)
        except BaseException:
            for pending in self._pendings:
                pending.give_up()
            raise
        if not ended:
            raise WaitTimeout(f"the operation has not ended within {seconds:g} s, and goes on")
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
        """Of a message from anybody: whose it was."""
        return int(self._pendings[0].wait())

    _source_rank = source_rank

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        """One, whoever asks. Without a lock: a finalizer may ask in the middle of this."""
        mine = vars(self)
        future: torch.futures.Future[list[torch.Tensor]] = mine.get("future") or mine.setdefault(
            "future", self._follow()
        )
        return future

    def _follow(self) -> "torch.futures.Future[list[torch.Tensor]]":
        ended: torch.futures.Future[None] = torch.futures.Future()
        when_all_done(self._pendings, lambda: follow(lambda: ended.set_result(None)))
        return ended.then(self._outcome)

    def _outcome(self, _: object) -> list[torch.Tensor]:
        error = self.exception()
        if error is not None:
            raise RuntimeError(f"{type(error).__name__}: {str(error) or _GIVEN_UP}") from error
        return self._tensors


def when_all_done(pendings: Sequence[LoopCall[Any]], callback: Callable[[], object]) -> None:
    """Call back once, on whatever thread brings the end."""
    ended = count(1)  # counts in one step, without a lock

    def one_done() -> None:
        if next(ended) == len(pendings):
            callback()

    for pending in pendings:
        pending.when_done(one_done)
    if not pendings:
        callback()
