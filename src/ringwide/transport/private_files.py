"""Files with secrets: opened without waiting, and refused where somebody else could read or change them."""

import os
import shlex
import stat
from pathlib import Path

_ROOT = 0
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_BUT_READING_GROUP = _OTHERS & ~stat.S_IRGRP


def open_without_waiting(path: Path) -> int:
    """A descriptor to read from. A pipe that nobody feeds would keep an ordinary open waiting."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def why_not_private(found: os.stat_result, path: Path, *, group_of_root: bool = False) -> str | None:
    """What is wrong with who can use this file, and the cure. None: it is ours, or root's, alone.

    `group_of_root`: a group may read what root owns, as certificates are often given to services.
    """
    if found.st_uid not in (os.geteuid(), _ROOT):
        return f"belongs to another user ({found.st_uid}), who can read and change it; use a file of your own"
    allows_group = group_of_root and found.st_uid == _ROOT
    if found.st_mode & (_OTHERS_BUT_READING_GROUP if allows_group else _OTHERS):
        return (
            f"has mode {stat.S_IMODE(found.st_mode):04o}, so that others on this machine can use it; "
            f"keep it to yourself: chmod 600 {shlex.quote(str(path))}"
        )
    return None
