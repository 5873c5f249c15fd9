"""A Ray cluster of three Ray nodes on this machine, and runs of an experiment on it."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PATIENCE_SECONDS = 250.0
CHILD = "ringwide.experiment.ray.child"
NODE = {"num_cpus": 4, "object_store_memory": 80 * 1024**2}


@contextmanager
def cluster_of_three(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    home = tempfile.mkdtemp(prefix="ray-")  # not deeper: names of sockets below it must not exceed 107 bytes
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else a warning of a change to come
    Path(home, "ray").mkdir()  # Ray expects it there
    monkeypatch.setenv("TMPDIR", home)  # for what actors that are killed leave
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "temp_dir": home})
    try:
        for _ in range(2):
            cluster.add_node(**NODE)
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(home, ignore_errors=True)


def raylet_pid(node: Any) -> int:
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid


class Launcher:
    """`ringwide run` as a process, and what it starts."""

    def __init__(self, directory: Path, experiment: str, *words: str, before: Sequence[str] = ()) -> None:
        """`before`: what stands before the command, to run it elsewhere."""
        self.directory = directory
        (directory / "experiment.yaml").write_text(f"{experiment}report: {{html: false}}\n")
        self._errors = (directory / "errors.txt").open("w")
        self._process = subprocess.Popen(
            [*before, sys.executable, "-m", "ringwide", "run", "experiment.yaml", *words],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )
        self.said: list[str] = []

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def errors(self) -> str:
        return (self.directory / "errors.txt").read_text()

    @property
    def results(self) -> dict[str, Any]:
        (found,) = self.directory.glob("runs/*/results.json")
        document: dict[str, Any] = json.loads(found.read_text())
        return document

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def until_it_says(self, pattern: str) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            line = self._process.stdout.readline()
            if not line:
                break
            self.said.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"never said {pattern!r}, but {self.said} and {self.errors}")

    def wait(self) -> int:
        out, _ = self._process.communicate(timeout=PATIENCE_SECONDS)
        self.said += out.splitlines(keepends=True)
        return self._process.returncode

    def nodes(self) -> dict[int, int]:
        """The pid of each node by its rank."""
        found = {}
        for pid, words in processes():
            if CHILD in words and any(word.startswith(str(self.directory)) for word in words):
                found[int(words[words.index("--rank") + 1])] = pid
        return found


def processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            yield int(entry.name), words


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
