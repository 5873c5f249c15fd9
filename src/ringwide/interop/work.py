"""What torch.distributed gives for an operation under way.

Rules, each learnt from a crash:
- An operation that fails never raises where it is called: inside a backward pass that would ruin the DDP object for
  good. Its work fails instead, when somebody waits for it.
- DDP waits for the work's future, not for the work, and a future that was given an exception ends the process. So ours
  succeeds with nothing, and the one we hand out follows it (`then`) and raises there.
- What follows a future is done by whoever makes it succeed, and may wait for another operation: so never by the loop's
  thread.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from ringwide.interop.following import follow
from ringwide.pending import Pending

_NO_TIMEOUT = timedelta(0)
_GIVEN_UP = "this rank has given it up"  # Ctrl-C, and it has no words
_FOLLOWING = threading.Lock()  # one for all: hardly ever do two threads ask at the same time


class WaitTimeout(RuntimeError, TimeoutError):
    """`work.wait(timeout)` was over before the work. A RuntimeError, as with other backends."""


class RingWork(Work):
    """One operation of a group, or several that were asked for together."""

    def __init__(self, pendings: Sequence[Pending[Any]], tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._pendings, self._tensors = pendings, tensors
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        if timeout > _NO_TIMEOUT:
            self._wait_for(timeout.total_seconds())
        else:
            for pending in self._pendings:
                pending.result()
        return True

    def _wait_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        try:
            for pending in self._pendings:
                pending.wait(max(0.0, until - time.monotonic()))
        except TimeoutError:
            raise WaitTimeout(f"the operation has not ended within {seconds:g} s, and goes on") from None

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
        with _FOLLOWING:
            if self._future is None:
                self._future = self._follow()
            return self._future

    def _follow(self) -> "torch.futures.Future[list[torch.Tensor]]":
        ended: torch.futures.Future[None] = torch.futures.Future()
        when_all_done(self._pendings, lambda: follow(lambda: ended.set_result(None)))
        return ended.then(self._outcome)

    def _outcome(self, _: object) -> list[torch.Tensor]:
        error = self.exception()
        if error is not None:
            raise RuntimeError(f"{type(error).__name__}: {str(error) or _GIVEN_UP}") from error
        return self._tensors


def when_all_done(pendings: Sequence[Pending[Any]], callback: Callable[[], object]) -> None:
    """Call back once, on whatever thread brings the end."""
    left, lock = len(pendings), threading.Lock()

    def one_done() -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            callback()

    for pending in pendings:
        pending.when_done(one_done)
    if not pendings:
        callback()
