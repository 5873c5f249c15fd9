"""A signal lets a rank say goodbye: the others shall not take its end for a crash, nor for a change of mind.

Of SIGTERM Python would die on the spot. Ctrl-C cancels the main task, as asyncio sees to it; here it is only noted.
"""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDED_BY_SIGTERM = 128 + signal.SIGTERM


class Farewell:
    """Whether this process was told to end, and by what."""

    def __init__(self) -> None:
        self._heard: signal.Signals | None = None
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        self._before = signal.getsignal(signal.SIGINT)

    @property
    def due(self) -> bool:
        return self._heard is not None

    @property
    def terminated(self) -> bool:
        return self._heard is signal.SIGTERM

    def reason(self, error: BaseException) -> str:
        """Why a rank leaves that leaves with an error, in words for the others."""
        if self._heard is not None:
            return f"it was told to end ({self._heard.name})"
        return f"it ended with {type(error).__name__}"

    def install(self) -> None:
        """Where nobody else cares for SIGTERM. A handler of the program's own stays as it is."""
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)
        if callable(self._before):
            signal.signal(signal.SIGINT, self._interrupt)

    def remove(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, self._before)

    def _terminate(self, *_: object) -> None:
        """Cancel the task that is in the ring. A second signal is not ours any more: it ends the process at once."""
        self._heard = signal.SIGTERM
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._heard = signal.SIGINT
        assert callable(self._before)
        self._before(number, frame)


@contextmanager
def farewell() -> Iterator[Farewell]:
    """For the length of the block signals are noted, and SIGTERM ends it, and then the program."""
    told = Farewell()
    in_main_thread = threading.current_thread() is threading.main_thread()  # the others may not set handlers
    if in_main_thread:
        told.install()
    try:
        yield told
    except asyncio.CancelledError:
        if told.terminated:
            raise SystemExit(_ENDED_BY_SIGTERM) from None
        raise
    finally:
        if in_main_thread:
            told.remove()
