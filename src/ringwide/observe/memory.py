"""What this process takes of the machine's memory, as Linux tells it. Elsewhere everything is 0: not known."""

import re
from pathlib import Path

_KIB = 1024


def shared_out_bytes() -> int:
    """Resident now. A page that processes share counts in part for each (PSS), so a sum over nodes is true."""
    return _kib_of("Pss", Path("/proc/self/smaps_rollup"))


def peak_bytes() -> int:
    """Resident at the highest, shared pages counted in full."""
    return _kib_of("VmHWM", Path("/proc/self/status"))


def _kib_of(name: str, path: Path) -> int:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB$", path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * _KIB if found else 0
