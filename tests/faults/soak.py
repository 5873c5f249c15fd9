"""`python -m tests.faults.soak`: a million small collectives, and what the ranks have of everything meanwhile.

Exit code 1 if a sum was wrong, a collective failed, something grew, or asyncio had reason for a warning.
"""

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop
from tests.faults.outcome import Run
from tests.faults.playing import opened_stage
from tests.faults.rank import Answer
from tests.faults.rows.row import MIB
from tests.faults.stage import Cast, Stage

KINDS = (("allreduce", 16), ("allreduce", 2000), ("barrier", 0), ("broadcast", 64), ("all_gather", 64))
LINES = 20
MOST_GROWTH_BYTES = 4 * MIB
COUNTED = ("descriptors", "threads", "tasks")


async def soak(
    stage: Stage, run: Run, *, collectives: int, size: int = 2, say: Callable[[str], None] = lambda _: None
) -> None:
    """Figures are compared with those after the first part, when every kind of call has been made."""
    say("collectives  seconds  rank: MiB, descriptors, threads, tasks")
    started, kinds = time.monotonic(), itertools.cycle(KINDS)
    part = max(1, collectives // (LINES * len(KINDS)))
    warm: dict[int, Answer] | None = None
    async with stage.ring(size, run) as cast:
        for done in range(0, collectives, part * len(KINDS)):
            for _ in KINDS:
                await _steps(cast, run, part, *next(kinds))
            figures = await cast.on_all("figures")
            say(f"{done + part * len(KINDS):11}  {time.monotonic() - started:7.0f}  {_shown(figures)}")
            if run.complaints:
                return
            warm = warm or figures
        _compare(run, warm or figures, figures)


async def _steps(cast: Cast, run: Run, times: int, kind: str, count: int) -> None:
    details: dict[str, Any] = {"first": 0, "weight": 1, "kind": kind, "dtype": "float32", "op": "sum"}
    for rank, answer in (await cast.on_all("steps", times=times, count=count, **details)).items():
        run.hear(rank, answer)
        for end in answer["ends"]:
            run.complain(f"rank {rank}: {end['outcome']}: {end['words']}")


def _shown(figures: dict[int, Answer]) -> str:
    return "  ".join(
        f"{rank}: {one['resident'] / MIB:.1f}, {', '.join(str(one[name]) for name in COUNTED)}"
        for rank, one in figures.items()
    )


def _compare(run: Run, warm: dict[int, Answer], last: dict[int, Answer]) -> None:
    for rank, figures in last.items():
        growth = figures["resident"] - warm[rank]["resident"]
        if growth > MOST_GROWTH_BYTES:
            run.complain(f"rank {rank} has grown by {growth / MIB:.1f} MiB")
        for name in COUNTED:
            if figures[name] > warm[rank][name]:
                run.complain(f"rank {rank} has {figures[name]} {name} instead of {warm[rank][name]}")


async def _soak_alone(collectives: int, size: int) -> Run:
    run = Run()
    async with opened_stage() as stage:
        await soak(stage, run, collectives=collectives, size=size, say=lambda line: print(line, flush=True))
    return run


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--collectives", type=int, default=1_000_000, metavar="N", help="(default: a million)")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="(default: 2)")
    options = parser.parse_args(words)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        run = runner.run(_soak_alone(options.collectives, options.ranks))
    print("\n".join(run.complaints) or "all flat, every sum exact, no warning")
    return 1 if run.complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
