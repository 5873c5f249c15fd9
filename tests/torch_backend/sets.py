"""Sets of processes that play cases, each started when a test first asks for one of its verdicts."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ringwide.bootstrap.rendezvous import LOOPBACK
from ringwide.experiment.find_peers import free_ports

ROOT = Path(__file__).parents[2]
SET_SECONDS = 300  # for a whole set; every case has a watchdog of its own
MOST_FAILURES = 8  # then something is wrong with everything, and the rest would only take time


@dataclass(frozen=True, slots=True)
class Kind:
    """Which set: the backend, how many ranks, how they are started."""

    backend: str
    size: int
    start: str  # "environment", "detail" (with TORCH_DISTRIBUTED_DEBUG=DETAIL) or "torchrun"

    def __str__(self) -> str:
        return f"{self.backend}-{self.size}-{self.start}"

    @property
    def environment(self) -> dict[str, str]:
        port = free_ports(1, random.Random())[0]
        meeting = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port), "WORLD_SIZE": str(self.size)}
        return {**meeting, "TORCH_DISTRIBUTED_DEBUG": "DETAIL" if self.start == "detail" else "OFF"}


@dataclass(frozen=True, slots=True)
class Ended:
    """How the ranks of a set ended: exit codes, and what each wrote down and said."""

    codes: list[int]
    lines: list[list[dict[str, Any]]]
    logs: list[str]

    def result(self, rank: int) -> Any:
        found = [line["result"] for line in self.lines[rank] if "result" in line]
        assert found, f"rank {rank} ended with {self.codes[rank]} and no result:\n{self.logs[rank][-4000:]}"
        return found[0]


class Nursery:
    """The process that ranks are forked from."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._number = directory, 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate()  # its stdin ends, and so does it

    def run(self, kind: Kind, *, settings: dict[str, str] | None = None, **task: Any) -> Ended:
        """Have a set do the task, with more settings in its environment, and wait until it has ended."""
        self._number += 1
        directory = self._directory / f"{self._number}-{kind}"
        directory.mkdir()
        words = {"backend": kind.backend, "size": kind.size, "start": kind.start, "directory": str(directory)}
        defaults = {"seconds": SET_SECONDS, "others_live_on": False}
        environment = {**kind.environment, **(settings or {})}
        codes = self._asked({**words, **defaults, "environment": environment, **task})
        return Ended(
            codes,
            [_lines(directory / f"rank{rank}.jsonl") for rank in range(kind.size)],
            [_text(directory / f"rank{rank}.log") for rank in range(kind.size)],
        )

    def _asked(self, request: dict[str, Any]) -> list[int]:
        process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, f"the process that forks ranks has ended with {process.wait()}"
        return json.loads(answer)  # type: ignore[no-any-return]

    def _started(self) -> "subprocess.Popen[str]":
        pythonpath = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torch_backend.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": pythonpath, "OMP_NUM_THREADS": "1"},
        )
        return self._process


@dataclass(slots=True)
class Sets:
    """The verdict on every case, for every kind of set: "" if all ranks passed, otherwise why not."""

    nursery: Nursery
    _verdicts: dict[Kind, dict[str, str]] = field(default_factory=dict)

    def verdict(self, kind: Kind, cases: Sequence[str], name: str) -> str:
        if kind not in self._verdicts:
            self._verdicts[kind] = _verdicts(self.nursery, kind, cases)
        return self._verdicts[kind][name]


def _verdicts(nursery: Nursery, kind: Kind, cases: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    failures = 0
    while (left := [name for name in cases if name not in found]) and failures < MOST_FAILURES:
        ended = nursery.run(kind, cases=left)
        passed = _passed_everywhere(ended, left)
        found.update(dict.fromkeys(passed, ""))
        if len(passed) < len(left):
            failures += 1
            found[left[len(passed)]] = _blame(ended, left[len(passed)])
        elif any(ended.codes):
            found[left[-1]] = f"after the last case: exit codes {ended.codes}\n" + _ends(ended)
    return {name: found.get(name, f"not played: {failures} cases before it failed") for name in cases}


def _passed_everywhere(ended: Ended, cases: list[str]) -> list[str]:
    """The first cases, up to one that did not pass on every rank: what came after it says nothing."""
    passed = [{line["case"] for line in lines if line.get("event") == "passed"} for lines in ended.lines]
    count = next((n for n, name in enumerate(cases) if not all(name in names for names in passed)), len(cases))
    return cases[:count]


def _blame(ended: Ended, name: str) -> str:
    words = [f"exit codes {ended.codes}"]
    for rank, lines in enumerate(ended.lines):
        own = {line["event"]: line for line in lines if line.get("case") == name}
        if "failed" in own:
            words.append(f"rank {rank} failed:\n{own['failed']['error']}")
        else:
            words.append(f"rank {rank}: " + ("passed" if "passed" in own else "in it" if own else "did not get there"))
    return "\n".join(words) + "\n" + _ends(ended)


def _ends(ended: Ended) -> str:
    return "\n".join(f"the log of rank {rank} ends:\n{log[-3000:]}" for rank, log in enumerate(ended.logs) if log)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _text(path).splitlines()]


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
