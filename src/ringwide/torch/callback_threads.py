"""Threads for what a program wants done when an operation has ended: `work.get_future().then(...)`.

Not the loop's thread: what follows may take long, and may itself wait for an operation (PowerSGD's does), which on the
loop's thread would wait for ever. For the same reason there is always a thread that is free: if all of them wait, one
more is started. Those that are there are used again.

At the end of the program it waits for them a little: who comes back from Python into torch's C++ when there is no
interpreter any more ends the process with an abort.
"""

import _thread
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from ringwide.runtime.background_loop import at_the_end

_REST_SECONDS = 2.0
_here = threading.local()


class CallbackThreads:
    """Threads that do what they are given, each thing at once.

    Without locks that two share, and without waiting for a thread to start: a finalizer that waits for the loop may run
    in the middle of anything here, and the loop's thread would wait for that.
    """

    def __init__(self) -> None:
        self._things: SimpleQueue[tuple[Callable[[], object], threading.Lock]] = SimpleQueue()
        self._free: deque[None] = deque()  # one for each thread that has nothing to do and was not promised anything
        self._under_way: set[threading.Lock] = set()  # each is held until its thing has been done

    def do(self, thing: Callable[[], object]) -> None:
        done = threading.Lock()
        done.acquire()
        self._under_way.add(done)
        one_is_free = self._promise()
        self._things.put((thing, done))
        if not one_is_free:
            _thread.start_new_thread(self._start_one, ())

    def _promise(self) -> bool:
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def _start_one(self) -> None:
        threading.Thread(target=self._live, name="ringwide-then", daemon=True).start()

    def _live(self) -> None:
        while True:
            thing, done = self._things.get()
            try:
                thing()
            finally:
                self._under_way.discard(done)
                done.release()
            del thing
            self._free.append(None)

    def rest(self, seconds: float) -> bool:
        """Wait until nothing is under way. Did it come to that?"""
        until = time.monotonic() + seconds
        while under_way := list(self._under_way):
            if not under_way[0].acquire(timeout=max(0.0, until - time.monotonic())):
                return False
            under_way[0].release()
        return True


_followers = CallbackThreads()


def follow(thing: Callable[[], object]) -> None:
    """Have it done by a thread of its own, soon."""

    def marked() -> None:
        _here.follows = True
        try:
            thing()
        finally:
            _here.follows = False

    _followers.do(marked)


def follows() -> bool:
    """Is this one of those threads, at work?

    Whether torch runs what follows a future in such a thread, or in the one that asks for it, is a matter of time: so
    who calls there is not known by its thread.
    """
    return getattr(_here, "follows", False)


def _forget_in_child() -> None:
    """A forked child has none of these threads."""
    global _followers
    _followers = CallbackThreads()


os.register_at_fork(after_in_child=_forget_in_child)
at_the_end(lambda: _followers.rest(_REST_SECONDS))
