"""One line that says where and with what a figure was measured."""

import os
import platform
from datetime import date
from importlib.metadata import version


def describe_machine() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("ringwide", "torch", "numpy", "uvloop"))
    return f"{date.today()}: {_processor()}, {os.cpu_count()} cores, {packages}, Python {platform.python_version()}"


def _processor() -> str:
    with open("/proc/cpuinfo") as lines:
        return next(
            (line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown processor"
        )
