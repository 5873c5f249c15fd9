"""A SIGTERM lets a rank say goodbye: Python would die of it on the spot, and the others take it for a crash."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ENDED_BY_SIGTERM = 128 + signal.SIGTERM


class Farewell:
    """Whether this process was asked to end, by a signal that its program does not handle itself."""

    def __init__(self) -> None:
        self.due = False
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()

    def hear(self, *_: object) -> None:
        """Cancel the task that is in the ring. A second signal is not ours any more: it ends the process at once."""
        self.due = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def reason(self, error: BaseException) -> str:
        """Why a rank leaves that leaves with an error, in words for the others."""
        if self.due:
            return "it was told to end (SIGTERM)"
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            return "it was interrupted"
        return f"it ended with {type(error).__name__}"


@contextmanager
def farewell() -> Iterator[Farewell]:
    """For the length of the block SIGTERM cancels this task, and then ends the program as if it had died of it.

    Only where nobody else cares for SIGTERM: a handler of the program's own stays as it is.
    """
    told = Farewell()
    hear = told.hear
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, hear)
    try:
        yield told
    except asyncio.CancelledError:
        if told.due:
            raise SystemExit(_ENDED_BY_SIGTERM) from None
        raise
    finally:
        if signal.getsignal(signal.SIGTERM) is hear:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
