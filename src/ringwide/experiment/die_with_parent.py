"""A node that was started by a launcher does not outlive it, however the launcher ends."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which must be the one that started it, is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


# What `ps` and `top` call a process: nodes of one fork server would all have the name of the server.

PR_SET_NAME = 15


def call_this_process(name: str) -> None:
    """The kernel keeps 15 bytes of it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
