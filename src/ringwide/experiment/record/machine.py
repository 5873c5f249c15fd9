"""On what a run was made: versions and machine. Nothing of it is imported to find out."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("ringwide", "torch", "numpy", "uvloop", "lz4", "pydantic", "scikit-learn")
CPU_FACTS = Path("/proc/cpuinfo")


def versions() -> dict[str, str]:
    """Of Python and the packages that matter; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str | int]:
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
    }


def _cpu() -> str:
    try:
        facts = CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        facts = []
    names = (line.partition(":")[2].strip() for line in facts if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
