"""The commands that measure long links and costs, as they are called: short, with two ranks."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

COMMAND = [sys.executable, "-m", "bench"]
MOST_SECONDS = 110


def test_long_links_are_measured() -> None:
    arguments = ["delay", "--round-trip", "20", "--lanes", "1,2", "--size", "1MiB", "--window", "256KiB", "--rounds=2"]
    ran = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=MOST_SECONDS, check=True)
    rows = re.findall(r"^ +(\d+) ms +0.25 MiB +(\w+) +([\d.]+) s ", ran.stdout, re.MULTILINE)
    assert [row[:2] for row in rows] == [(ms, who) for ms in ("0", "20") for who in ("gloo", "1", "2")]
    assert all(float(seconds) >= 0.02 for round_trip, _, seconds in rows if round_trip == "20")


@pytest.mark.timeout(2 * MOST_SECONDS + 10)
def test_costs_are_measured() -> None:
    """All but processor time, which is measured in the same turns as time."""
    curves = ["--only", "time,memory,allocations,join"]
    arguments = ["costs", "--ranks", "2", "--sizes", "4KiB", "--memory-sizes", "1MiB", "--rounds", "1", *curves]
    ran = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=2 * MOST_SECONDS, check=True)
    rows = re.findall(r"^\| 2 \| ([^|]+) \| ([^|]+) \|", ran.stdout, re.MULTILINE)
    assert [size for size, _ in rows[:-1]] == ["4 KiB", "1 MiB", "1 MiB", "4 KiB"]
    assert "**grows**" not in ran.stdout


def test_halves_are_measured() -> None:
    arguments = ["halves", "--ranks", "2", "--sizes", "2MiB", "--rounds", "2"]
    ran = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=MOST_SECONDS, check=True)
    rows = re.findall(r"^\| 2 \| (\w+) \| 2 MiB .* \| (\d+ \(\d+\)) \|", ran.stdout, re.MULTILINE)
    assert rows == [("bfloat16", "4 (4)"), ("float16", "4 (4)"), ("float32", "8 (8)")]


def test_a_command_that_is_ended_ends_what_it_has_started() -> None:
    arguments = ["delay", "--lanes", "1", "--rounds", "100000", "--no-gloo"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL) as command:
        try:
            started = children_of(command, count=3)  # the proxy and two ranks
            command.send_signal(signal.SIGTERM)
            assert command.wait(MOST_SECONDS) == 128 + signal.SIGTERM
        finally:
            command.kill()
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def children_of(process: "subprocess.Popen[bytes]", *, count: int) -> list[int]:
    """As soon as there are so many."""
    deadline = time.monotonic() + MOST_SECONDS
    found: list[int] = []
    while len(found) < count:
        assert process.poll() is None, "it has ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.01)
        found = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    return found
