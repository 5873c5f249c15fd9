"""Strangers connect by the thousand while ranks work: no step fails, none takes longer, nothing grows."""

import asyncio
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.faults.crew import PATIENCE_SECONDS, ROOT
from tests.faults.outcome import Bar, Run
from tests.faults.rank import Answer
from tests.faults.rows.protection import settings_of
from tests.faults.rows.row import MIB, Play, Row, Terms
from tests.faults.stage import Cast, Stage

SIZE = 2
COUNT = 64 * 1024  # float32: 256 KiB
QUIET_SECONDS = 3.0
"""After that a rank has noticed that all strangers have hung up, those as well that it had not even seen."""
MOST_QUIET_SECONDS = 30.0
"""... or after that, on a machine that is busy with something else."""
COUNTED = ("descriptors", "tasks", "threads")
MOST_GROWTH_BYTES = 8 * MIB
RATIO = "median step, with strangers / without"


def playing(protection: str) -> Play:
    async def play(stage: Stage, run: Run, chance: random.Random, terms: Terms) -> None:
        async with stage.ring(SIZE, run, **(settings_of(protection) if protection else {})) as cast:
            steps = await _steps_of_a_window(cast, run, terms)
            async with _strangers(cast.ports, terms) as strangers:
                await _interleaved(cast, run, strangers, steps, terms.strangers)

    return play


async def _steps_of_a_window(cast: Cast, run: Run, terms: Terms) -> int:
    await _window(cast, run, 50)
    return max(20, int(terms.window_seconds / statistics.median(await _window(cast, run, 100))))


async def _interleaved(cast: Cast, run: Run, strangers: "_Strangers", steps: int, most: int) -> None:
    alone, visited, count = [], [], 0
    before = await cast.on_all("figures")
    while count < most and not run.complaints:
        alone += await _window(cast, run, steps)
        strangers.order("go")
        visited += await _window(cast, run, steps)
        strangers.order("pause")
        count = int(await strangers.answer())
        await asyncio.sleep(QUIET_SECONDS)
    after = await _figures_in_the_end(cast, before)
    run.times[RATIO] = statistics.median(visited) / statistics.median(alone)
    run.notes["strangers"] += count
    run.notes["steps"] += len(alone) + len(visited)
    for rank, figures in after.items():
        growth = figures["resident"] - before[rank]["resident"]
        run.notes["KiB more memory"] += growth // 1024
        if growth > MOST_GROWTH_BYTES:
            run.complain(f"rank {rank} has grown by {growth / MIB:.1f} MiB")
        for name in COUNTED:
            if figures[name] > before[rank][name]:
                run.complain(f"rank {rank} has {figures[name]} {name} instead of {before[rank][name]}")


async def _figures_in_the_end(cast: Cast, before: dict[int, Answer]) -> dict[int, Answer]:
    """What is left of strangers goes when they have been noticed to have gone; what was lost stays."""
    deadline = time.monotonic() + MOST_QUIET_SECONDS
    while True:
        figures = await cast.on_all("figures")
        more = any(one[name] > before[rank][name] for rank, one in figures.items() for name in COUNTED)
        if not more or time.monotonic() > deadline:
            return figures
        await asyncio.sleep(QUIET_SECONDS)


async def _window(cast: Cast, run: Run, steps: int) -> list[float]:
    """The seconds of each of so many steps."""
    details: dict[str, Any] = {"first": 0, "weight": 1, "kind": "allreduce", "dtype": "float32", "op": "sum"}
    answers = await cast.on_all("steps", times=steps, count=COUNT, **details)
    for rank, answer in answers.items():
        run.hear(rank, answer)
        for end in answer["ends"]:
            run.complain(f"rank {rank}: a step failed: {end['outcome']}: {end['words']}")
    return list(answers[0]["seconds"]) if 0 in answers else [1.0]


class _Strangers:
    """The process in which they live."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._say, self._hear = process.stdin, process.stdout

    def order(self, word: str) -> None:
        self._say.write(f"{word}\n".encode())

    async def answer(self) -> str:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await self._hear.readline()).decode().strip()


@asynccontextmanager
async def _strangers(ports: list[int], terms: Terms) -> AsyncIterator[_Strangers]:
    pipe: Any = subprocess.PIPE
    words = [terms.strangers_at_a_time, terms.strangers_nice, *ports]
    command = [sys.executable, "-m", "tests.faults.strangers", *map(str, words)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
    try:
        strangers = _Strangers(process)
        await strangers.answer()
        yield strangers
    finally:
        process.kill()
        await process.wait()


PROMISE = "no failed step, no longer steps, nothing grows"
BARS = (Bar(1, 1.05, RATIO, unit="x"),)
ROWS = (
    Row("strangers", f"{PROMISE} (a ring with a key)", 1, playing("key"), bars=lambda _: BARS),
    Row("strangers-open", f"{PROMISE} (a ring without)", 1, playing(""), bars=lambda _: BARS),
)
