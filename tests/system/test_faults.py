"""The rows of `make faults`, a few runs of each: what every rank must see when something breaks.

Whether it is seen in time is for `make faults` to say, on a machine that has nothing else to do.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from tests.faults import checker
from tests.faults.history import RETURNED, Entry
from tests.faults.known import digest_of_input, digest_of_sum
from tests.faults.outcome import Run, Tally
from tests.faults.playing import opened_stage, play_row
from tests.faults.programme import ROWS
from tests.faults.rows.row import Row, Terms
from tests.faults.soak import soak

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

SHORT = Terms(
    suspect_after_seconds=1.0,
    warn_after_seconds=0.5,
    timeout_seconds=1.5,
    step_seconds=1.2,
    slow_megabytes=1,
    slow_seconds=2.4,
    megabytes=4,
    sizes=(2, 4),
    damaged_frames=20,
    strangers=40,
    strangers_at_a_time=100,
    strangers_nice=0,
    window_seconds=0.3,
    patience_seconds=100,
)
SOAKED = 2500
RUNS = {"strangers": 1, "strangers-open": 0, "slow-bandwidth": 1}
"""Where two would take too long. A ring without a key minds strangers no more than one with it."""


class Theatre:
    """One stage for all tests: its processes are started once."""

    def __init__(self, runner: asyncio.Runner, stage: Any) -> None:
        self._runner, self._stage = runner, stage

    def play(self, row: Row, **options: Any) -> Tally:
        return self._runner.run(play_row(self._stage, row, terms=SHORT, **options))

    def soak(self, collectives: int) -> Run:
        run = Run()
        self._runner.run(soak(self._stage, run, collectives=collectives))
        return run


@pytest.fixture(scope="module")
def theatre() -> Iterator[Theatre]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        opening = opened_stage()
        yield Theatre(runner, runner.run(opening.__aenter__()))
        runner.run(opening.__aexit__(None, None, None))


@pytest.mark.parametrize("name", [name for name in ROWS if RUNS.get(name, 2)])
def test_a_few_runs_of(name: str, theatre: Theatre) -> None:
    runs = RUNS.get(name, 2)
    tally = theatre.play(ROWS[name], runs=runs, jobs=runs)
    assert tally.complaints == []
    assert tally.count == runs


def test_many_small_collectives_leave_everything_as_it_was(theatre: Theatre) -> None:
    assert theatre.soak(SOAKED).complaints == []


# -- the checker itself


MEMBERS, COUNT, WEIGHT = (0, 1, 2), 10, 5


def entry_of(rank: int, **changes: Any) -> Entry:
    good = Entry(
        run="1",
        rank=rank,
        members=MEMBERS,
        call=0,
        weight=WEIGHT,
        kind="allreduce",
        count=COUNT,
        dtype="float32",
        op="sum",
        before=digest_of_input(rank, COUNT, WEIGHT, "float32"),
        after=digest_of_sum(MEMBERS, COUNT, WEIGHT, "float32"),
        outcome=RETURNED,
        words="",
        lost=None,
        begun=0.0,
        ended=1.0,
    )
    return replace(good, **changes)


def with_one(**changes: Any) -> list[Entry]:
    return [entry_of(0), entry_of(1, **changes), entry_of(2)]


def test_good_histories_are_no_reason_to_complain() -> None:
    its_own = digest_of_input(1, COUNT, WEIGHT, "float32")
    assert checker.complaints(with_one()) == []
    assert checker.complaints(with_one(outcome="PeerLost", after=its_own)) == []
    assert checker.complaints([entry_of(0), entry_of(2)], gone={1}) == []


@pytest.mark.parametrize(
    ("history", "complaint"),
    [
        (with_one(after=digest_of_sum((0, 1), COUNT, WEIGHT, "float32")), "WRONG SUM"),
        (with_one(after=digest_of_sum(MEMBERS, COUNT, WEIGHT + 1, "float32")), "WRONG SUM"),
        (with_one(after=digest_of_sum((0, 1), COUNT, WEIGHT, "float32")), "results differ"),
        (with_one(outcome="PeerLost"), "its tensor is not what it was"),
        (with_one(before=digest_of_input(0, COUNT, WEIGHT, "float32")), "did not begin with the numbers"),
        (with_one(count=COUNT + 1), "though ranks called"),
        ([entry_of(0), entry_of(2)], "have written no end of it"),
        ([entry_of(0), *with_one()], "two ends of one call"),
    ],
)
def test_a_planted_wrong_history_makes_the_checker_complain(history: list[Entry], complaint: str) -> None:
    assert any(complaint in found for found in checker.complaints(history))
