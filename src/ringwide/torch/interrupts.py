"""Ctrl-C while DDP waits.

DDP waits in C++, where Python's own handler does not run. The wake-up descriptor is written at the moment of the
signal, whatever the main thread does: the loop's thread reads it and gives up what is under way, so that the wait in
C++ ends, and Python raises its KeyboardInterrupt.

Only where Ctrl-C means that: a program with a handler of its own (to stop at the end of a step, say) is left alone, and
so is one with a wake-up descriptor of its own, as every asyncio program has.
"""

import os
import signal
import socket
import threading

from ringwide.runtime.background_loop import BackgroundLoop


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
