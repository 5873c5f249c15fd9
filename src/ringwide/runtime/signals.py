"""Signals that end a rank: it says goodbye first, so that the others take its end for no crash.

SIGTERM would end Python on the spot. Ctrl-C cancels the main task, as asyncio sees to it; here it is only noted.
One handler serves all rings of a process, from the first that is joined to the last that is left. A child that is
forked meanwhile has no part in it: there a signal does what it did before.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDED_BY_SIGTERM = 128 + signal.SIGTERM
_SOON_SECONDS = 2.0
"""A program that goes on for longer after Ctrl-C has made up its mind to stay."""

Handler = Callable[[int, FrameType | None], object] | int | None


class LeaveRequest:
    """Whether the process of one ring was told to end, and by what."""

    def __init__(self) -> None:
        self._heard: signal.Signals | None = None
        self._heard_at = 0.0
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()

    @property
    def due(self) -> bool:
        return self._heard is not None and self._loop.time() - self._heard_at < _SOON_SECONDS

    @property
    def terminated(self) -> bool:
        return self._heard is signal.SIGTERM

    def reason(self, error: BaseException) -> str:
        """Why a rank leaves that leaves with an error, in words for the others."""
        if self._heard is not None and self.due:
            return f"it was told to end ({self._heard.name})"
        return f"it ended with {type(error).__name__}"

    def hear(self, number: signal.Signals) -> None:
        self._heard, self._heard_at = number, self._loop.time()
        if number is signal.SIGTERM and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)


class _Handlers:
    """The handlers of this process, while it is in a ring."""

    def __init__(self) -> None:
        self._present: list[LeaveRequest] = []
        self._interrupt_before: Handler = None
        os.register_at_fork(after_in_child=self._leave_to_the_parent)

    def add(self, told: LeaveRequest) -> None:
        self._present.append(told)
        if len(self._present) == 1:
            self._install()

    def remove(self, told: LeaveRequest) -> None:
        self._present.remove(told)
        if not self._present:
            self._restore()

    def _install(self) -> None:
        """SIGTERM only where nobody else cares for it: a handler of the program's own stays as it is."""
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)
        self._interrupt_before = signal.getsignal(signal.SIGINT)
        if callable(self._interrupt_before):
            signal.signal(signal.SIGINT, self._interrupt)

    def _restore(self) -> None:
        """Unless the program has set others meanwhile."""
        if signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, self._interrupt_before)

    def _leave_to_the_parent(self) -> None:
        if self._present and threading.current_thread() is threading.main_thread():
            self._present.clear()
            self._restore()

    def _terminate(self, *_: object) -> None:
        """A second signal is not ours any more: it ends the process at once."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for told in self._present:
            told.hear(signal.SIGTERM)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        for told in self._present:
            told.hear(signal.SIGINT)
        if callable(self._interrupt_before):
            self._interrupt_before(number, frame)


_HANDLERS = _Handlers()


@contextmanager
def leave_on_signal() -> Iterator[LeaveRequest]:
    """For the length of the block signals are noted, and SIGTERM ends it, and then the program."""
    told = LeaveRequest()
    in_main_thread = threading.current_thread() is threading.main_thread()  # the others may not set handlers
    if in_main_thread:
        _HANDLERS.add(told)
    try:
        yield told
    except asyncio.CancelledError:
        if told.terminated:
            raise SystemExit(_ENDED_BY_SIGTERM) from None
        raise
    finally:
        if in_main_thread:
            _HANDLERS.remove(told)
