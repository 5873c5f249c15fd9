"""Threads for what a program wants done when an operation has ended: `work.get_future().then(...)`.

Not the loop's thread: what follows may take long, and may itself wait for an operation (PowerSGD's does), which on the
loop's thread would wait for ever. For the same reason there is always a thread that is free: if all of them wait, one
more is started. Those that are there are used again.

At the end of the program it waits for them a little: who comes back from Python into torch's C++ when there is no
interpreter any more ends the process with an abort.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from ringwide.background import at_the_end

_REST_SECONDS = 2.0


class Followers:
    """Threads that do what they are given, each thing at once."""

    def __init__(self) -> None:
        self._things: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._lock = threading.Condition()
        self._free = 0  # threads that wait for something to do and have not been promised to anything
        self._under_way = 0

    def do(self, thing: Callable[[], object]) -> None:
        with self._lock:
            self._under_way += 1
            one_is_free = self._free > 0
            self._free -= one_is_free
        self._things.put(thing)
        if not one_is_free:
            threading.Thread(target=self._live, name="ringwide-then", daemon=True).start()

    def _live(self) -> None:
        while True:
            thing = self._things.get()
            try:
                thing()
            finally:
                with self._lock:
                    self._under_way -= 1
                    self._lock.notify_all()
            del thing
            with self._lock:
                self._free += 1

    def rest(self, seconds: float) -> bool:
        """Wait until nothing is under way. Did it come to that?"""
        with self._lock:
            return self._lock.wait_for(lambda: not self._under_way, seconds)


_followers = Followers()


def follow(thing: Callable[[], object]) -> None:
    """Have it done by a thread of its own, soon."""
    _followers.do(thing)


def _forget_in_child() -> None:
    """A forked child has none of these threads."""
    global _followers
    _followers = Followers()


os.register_at_fork(after_in_child=_forget_in_child)
at_the_end(lambda: _followers.rest(_REST_SECONDS))
