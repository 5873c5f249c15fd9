"""What the kernel says about this very process: its memory, its processor time."""

import resource
from pathlib import Path

KIB = 1024


def resident_bytes() -> int:
    """All pages that are here, whoever else has them too."""
    return _kilobytes("/proc/self/status", "VmRSS") * KIB


def peak_resident_bytes() -> int:
    """The most that was ever here, or since `forget_peak`."""
    return _kilobytes("/proc/self/status", "VmHWM") * KIB


def proportional_bytes() -> int:
    """A page that n processes share counts a nth: the sum over all ranks is what they take of the machine.

    Without pages of files: libraries are shared with processes that have nothing to do with us, and that come and go.
    """
    return sum(_kilobytes("/proc/self/smaps_rollup", field) for field in ("Pss_Anon", "Pss_Shmem")) * KIB


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def processor_seconds() -> tuple[float, float]:
    """Of all threads since the start: in the program, and in the kernel on its behalf."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def _kilobytes(path: str, field: str) -> int:
    lines = Path(path).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
