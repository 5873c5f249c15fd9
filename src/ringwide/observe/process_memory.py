"""What this process takes of the machine's memory, as Linux tells it. Elsewhere everything is 0: not known."""

import re
from pathlib import Path

_KIB = 1024
_SMAPS = Path("/proc/self/smaps_rollup")


def resident_bytes() -> int:
    """Resident now, shared pages counted in full."""
    return _kib_of("Rss", _SMAPS)


def shared_out_bytes(siblings: int = 0) -> int:
    """Resident now. A page that processes share counts in part for each (PSS), so a sum over nodes is true.

    `siblings`: so many processes, this one among them, were forked from one that nobody counts. Its part of what they
    all share is counted with theirs.
    """
    shared_out = _kib_of("Pss", _SMAPS)
    if not siblings:
        return shared_out
    private = _kib_of("Private_Clean", _SMAPS) + _kib_of("Private_Dirty", _SMAPS)
    return shared_out + max(0, shared_out - private) // siblings


def peak_bytes() -> int:
    """Resident at the highest, shared pages counted in full."""
    return _kib_of("VmHWM", Path("/proc/self/status"))


def _kib_of(name: str, path: Path) -> int:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB$", path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * _KIB if found else 0
