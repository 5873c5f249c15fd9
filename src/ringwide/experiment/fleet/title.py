"""What `ps` and `top` call a process: nodes of one fork server would all have the name of the server."""

import ctypes
import sys

PR_SET_NAME = 15


def call_this_process(name: str) -> None:
    """The kernel keeps 15 bytes of it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
