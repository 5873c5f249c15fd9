"""One rank of a set: plays case after case, and writes down in JSON lines when each began and how it went.

A case that fails ends the rank, because nobody knows what the others are waiting for now. A case that takes too long
ends it too, with the stacks of all threads in its log.
"""

import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.torch_backend import compiled, failures
from tests.torch_backend.conformance import CASES
from tests.torch_backend.limits import Limit, limits_of
from tests.torch_backend.world import World

from ringwide.experiment.forkserver import die_with_parent

LONGEST_CASE_SECONDS = 60
LONGEST_START_SECONDS = 90
A_LONG_TIME = timedelta(minutes=10)  # no deadline of the backend's own comes before the watchdog


class NotRefused(AssertionError):
    """A case succeeded that is listed as impossible."""


class Report:
    """What a rank writes down, each line as soon as it is known."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._path = directory / f"rank{rank}.jsonl"

    def write(self, **words: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(words) + "\n")


def play_all(world: World, report: Report, names: list[str]) -> None:
    limits = limits_of(world.backend)
    for name in names:
        _play(world, report, name, limits.get(name))


def _play(world: World, report: Report, name: str, limit: Limit | None) -> None:
    report.write(case=name, event="begun")
    faulthandler.dump_traceback_later(LONGEST_CASE_SECONDS, exit=True)
    began = time.monotonic()
    try:
        if limit is None:
            CASES[name](world)
        else:
            _must_refuse(world, CASES[name], limit)
    except BaseException:
        report.write(case=name, event="failed", error=traceback.format_exc())
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()
    report.write(case=name, event="passed", seconds=round(time.monotonic() - began, 4))


def _must_refuse(world: World, case: Callable[[World], None], limit: Limit) -> None:
    try:
        case(world)
    except Exception as refusal:
        if not limit.fits(refusal):
            raise
    else:
        raise NotRefused(f"listed as impossible ({limit.why}), yet it passes")


def live(task: dict[str, Any]) -> None:
    """The life of a rank: join as the environment says, do what the task says, leave."""
    backend, rank, size = task["backend"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    faulthandler.enable()
    torch.set_num_threads(1)
    report = Report(Path(task["directory"]), rank)
    faulthandler.dump_traceback_later(LONGEST_START_SECONDS, exit=True)
    dist.init_process_group(backend, timeout=A_LONG_TIME)
    faulthandler.dump_traceback_later(LONGEST_CASE_SECONDS, exit=True)
    world = World(rank, size, backend)
    if "cases" in task:
        play_all(world, report, task["cases"])
    else:
        act = getattr(failures, task["act"], None) or getattr(compiled, task["act"])
        report.write(result=act(world, **task["arguments"]))
    faulthandler.dump_traceback_later(LONGEST_CASE_SECONDS, exit=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    report.write(event="left")


if __name__ == "__main__":  # as torchrun starts it; torch itself finds the backend
    die_with_parent(os.getppid())
    live(json.loads(Path(sys.argv[1]).read_text()))
