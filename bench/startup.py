"""What it costs to start: `python -m bench startup`. Medians of fresh processes, beside an empty Python."""

import argparse
import os
import py_compile
import statistics
import subprocess
import sys
import time

import ringwide
import ringwide.torch
from bench.machine import describe_machine

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import ringwide": ["-c", "import ringwide"],
    "import ringwide; ringwide.join": ["-c", "import ringwide; ringwide.join"],
    "python -m ringwide --help": ["-m", "ringwide", "--help"],
    "python -m ringwide run --help": ["-m", "ringwide", "run", "--help"],
    "python -m ringwide.node --help": ["-m", "ringwide.node", "--help"],
}


REGISTERING = """
import time
import torch.distributed
began = time.perf_counter()
from ringwide.torch import register
register()
assert torch.distributed.is_backend_available("ringwide")
print(time.perf_counter() - began)
"""
"""What every program that imports torch pays for the backend, timed inside; torch itself has not done it here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=11, help="processes for each line (default: %(default)s)")


def run(options: argparse.Namespace) -> None:
    print(describe_machine())
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.rounds):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - start)
    for name, taken in times.items():
        print(f"{name:<32} {statistics.median(taken):.3f} s")
    for module in (ringwide, ringwide.torch):
        py_compile.compile(str(module.__file__))  # as every installation has it
    print(f"{'registering with torch':<32} {statistics.median(map(registering, range(5))) * 1e3:.2f} ms")


def registering(_: int) -> float:
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    told = subprocess.run([sys.executable, "-c", REGISTERING], check=True, capture_output=True, env=environment)
    return float(told.stdout)
