"""Threads for the callbacks of a finished operation: `work.get_future().then(...)`.

A callback never runs on the loop's thread: it may take long, and may itself wait for an operation (PowerSGD's does),
which on the loop's thread would deadlock. For the same reason there is always a free thread: if all of them wait, one
more is started. Idle threads are reused.

At exit the program waits for them briefly: a thread that returns from Python into torch's C++ after the interpreter has
gone aborts the process.
"""

import _thread
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from ringwide.runtime.background_loop import at_the_end

_DRAIN_SECONDS = 2.0
_here = threading.local()


class CallbackThreads:
    """Threads that run each callback at once, however many others are running.

    There is no shared lock, and no wait for a thread to start: a finalizer that waits for the loop may run in the
    middle of any line here, and the loop's thread must not wait for that finalizer.
    """

    def __init__(self) -> None:
        self._callbacks: SimpleQueue[tuple[Callable[[], object], threading.Lock]] = SimpleQueue()
        self._free: deque[None] = deque()  # one entry per idle thread that no callback is assigned to
        self._under_way: set[threading.Lock] = set()  # each is held until its callback has returned

    def run(self, callback: Callable[[], object]) -> None:
        done = threading.Lock()
        done.acquire()
        self._under_way.add(done)
        one_is_free = self._take_free()
        self._callbacks.put((callback, done))
        if not one_is_free:
            _thread.start_new_thread(self._start_one, ())

    def _take_free(self) -> bool:
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def _start_one(self) -> None:
        threading.Thread(target=self._work, name="ringwide-callback", daemon=True).start()

    def _work(self) -> None:
        while True:
            callback, done = self._callbacks.get()
            try:
                callback()
            finally:
                self._under_way.discard(done)
                done.release()
            del callback
            self._free.append(None)

    def drain(self, seconds: float) -> bool:
        """Wait until no callback is under way. False if the time was over before."""
        until = time.monotonic() + seconds
        while under_way := list(self._under_way):
            if not under_way[0].acquire(timeout=max(0.0, until - time.monotonic())):
                return False
            under_way[0].release()
        return True


_threads = CallbackThreads()


def run_in_thread(callback: Callable[[], object]) -> None:
    """Run the callback soon, in a thread of its own."""

    def marked() -> None:
        _here.in_callback = True
        try:
            callback()
        finally:
            _here.in_callback = False

    _threads.run(marked)


def in_callback_thread() -> bool:
    """Whether this code runs in a callback thread.

    Whether torch runs a callback in such a thread or in the one that calls `then` depends on timing, so a call made
    from a callback cannot be attributed to its thread.
    """
    return getattr(_here, "in_callback", False)


def _forget_in_child() -> None:
    """A forked child has none of these threads."""
    global _threads
    _threads = CallbackThreads()


os.register_at_fork(after_in_child=_forget_in_child)
at_the_end(lambda: _threads.drain(_DRAIN_SECONDS))
