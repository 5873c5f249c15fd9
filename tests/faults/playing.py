"""Plays the runs of rows, some at a time, and says what goes wrong as it goes wrong."""

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop
from tests.faults.crew import Crew, Gone, Hung
from tests.faults.outcome import Run, Tally
from tests.faults.rows.row import Row, Terms
from tests.faults.stage import Stage

COMPLAINTS_SHOWN = 20


def play_rows(rows: Sequence[Row], *, runs: int | None, jobs: int | None, seed: int) -> list[Tally]:
    """All runs of these rows, each row with processes of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return [runner.run(_play_aloud(row, runs=runs, jobs=jobs, seed=seed)) for row in rows]


async def _play_aloud(row: Row, *, runs: int | None, jobs: int | None, seed: int) -> Tally:
    started = time.monotonic()
    async with opened_stage() as stage:
        tally = await play_row(stage, row, runs=runs, jobs=jobs, seed=seed)
    for complaint in tally.complaints[:COMPLAINTS_SHOWN]:
        print(f"    {complaint}")
    notes = ", ".join(f"{count} x {note}" for note, count in sorted(tally.notes.items()))
    print(
        f"{row.name}: {row.promise}. {tally.good} of {len(tally.runs)} good, seed {seed}, "
        f"{time.monotonic() - started:.0f} s. {notes}",
        flush=True,
    )
    return tally


@asynccontextmanager
async def opened_stage() -> AsyncIterator[Stage]:
    """Processes for any number of runs, and a place for what they write down."""
    with tempfile.TemporaryDirectory(prefix="ringwide-faults-") as folder:
        async with Crew(Path(folder)) as crew:
            yield Stage(crew, Path(folder))


async def play_row(
    stage: Stage,
    row: Row,
    *,
    runs: int | None = None,
    jobs: int | None = None,
    seed: int = 0,
    terms: Terms | None = None,
) -> Tally:
    terms, places = terms or Terms(), asyncio.Semaphore(jobs or row.jobs)
    stage.patience = terms.patience_seconds

    async def one(number: int) -> Run:
        run, chance = Run(), random.Random(f"{row.name} {seed} {number}")
        async with places:
            try:
                await row.play(stage, run, chance, terms)
            except (Hung, Gone) as error:
                run.complain(str(error))
        return run

    return Tally(row.name, row.bars(terms), list(await asyncio.gather(*map(one, range(runs or row.runs)))))
