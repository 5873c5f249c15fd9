"""Waits that no signal interrupts, for the main thread.

Every wait that Python offers runs signal handlers, and ends when one of them raises. Whoever has to stay whatever comes
can only catch that and wait again; but between the two, at the back edge of the loop, the next signal gets through. The
interpreter itself has a wait that goes on after a signal. Handlers run when it is over.
"""

import ctypes
import threading

_python = ctypes.CDLL(None)  # unlike ctypes.pythonapi it lets other threads run meanwhile
_allocate, _acquire, _release = (
    getattr(_python, f"PyThread_{name}_lock") for name in ("allocate", "acquire", "release")
)
_allocate.restype = ctypes.c_void_p
_acquire.argtypes = [ctypes.c_void_p, ctypes.c_int]
_release.argtypes = [ctypes.c_void_p]
_release.restype = None
_spare: dict[str, int] = {}  # one is enough, unless a signal handler makes calls of its own

wait_whatever_comes = _acquire
"""wait_whatever_comes(latch, 1): returns when it is open. One call of C, after which handlers of signals may run."""


def take_latch() -> int | None:
    """One that is shut, for the main thread. Other threads are not interrupted by signals, and need none."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return _spare.pop("latch", None) or _new_latch()


def _new_latch() -> int:
    latch: int = _allocate()
    _acquire(latch, 1)
    return latch


def open_latch(latch: int) -> None:
    """For good: it must not be put back."""
    _release(latch)


def put_back(latch: int | None) -> None:
    """It is still shut, and nobody will open it."""
    if latch is not None:
        _spare["latch"] = latch
