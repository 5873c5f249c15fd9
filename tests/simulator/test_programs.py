"""Thousands of programs on the call boundary. One alone: `python -m ringwide.simulator --programs 1 --first SEED`."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import get_args

import pytest

from ringwide.collectives.plan import CollectiveKind
from ringwide.simulator.__main__ import main
from ringwide.simulator.programs.drawing import program_of
from ringwide.simulator.programs.program import (
    Abandon,
    AbandonKind,
    Branch,
    Cancel,
    Leave,
    Mistake,
    Overlap,
    Program,
    Step,
    TaskGroupStep,
    all_steps,
)
from ringwide.simulator.programs.verdict import Expectation, expectations_of, goes_astray
from ringwide.simulator.programs.world import run_program
from ringwide.simulator.ring_life import Tried, cores, try_seeds
from simulator.programs import CASES, Case, program_of_case

pytestmark = pytest.mark.timeout(600)  # much is computed

PROGRAMS, PARTS = 20_000, 8
SOME_PROGRAMS = 4000
TIMINGS = 40


@pytest.fixture(scope="module")
def trials() -> Iterator[Iterator[Tried]]:
    """All programs, tried by as many processes as there are cores while the tests here wait for them."""
    trials = try_seeds(0, PROGRAMS, jobs=cores(), try_one=run_program)
    yield trials
    trials.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_program_has_problems(part: int, trials: Iterator[Tried]) -> None:
    failures, tried = [], 0
    while tried < PROGRAMS / PARTS:
        some = next(trials)
        failures += some.failing
        tried += some.seeds
    assert not failures, "\n".join(f"seed {one.seed}: {'; '.join(one.problems)}" for one in failures)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_was_wrong_once_is_right(case: Case, size: int) -> None:
    program = program_of_case(case, size)
    for seed in range(TIMINGS):
        assert not (problems := run_program(seed, program).problems), f"seed {seed}: {problems}\n{program}"


def test_a_replay_is_identical() -> None:
    for seed in range(100):
        assert run_program(seed) == run_program(seed), f"seed {seed}"


def test_seeds_differ() -> None:
    assert len({run_program(seed).digest for seed in range(20)}) == 20


def test_programs_are_the_same_in_any_process() -> None:
    here, elsewhere = (
        sum(some.events for some in try_seeds(0, 150, jobs=jobs, try_one=run_program)) for jobs in (1, 2)
    )
    assert here == elsewhere


# What comes up


def test_every_step_comes_up() -> None:
    met = {type(step) for program in some_programs() for step in all_steps(program.steps)}
    assert met == set(get_args(Step))


def test_every_call_comes_up_with_every_overlap_and_mistake() -> None:
    calls = [call for program in some_programs() for call in program.calls()]
    assert {call.kind for call in calls} == set(CollectiveKind) - {CollectiveKind.EXCHANGE}
    assert {call.overlap for call in calls} == set(Overlap)
    assert {mistake for call in calls for mistake in call.mistakes.values()} == set(Mistake)


def test_calls_are_let_go_in_every_way_and_tasks_cancelled_at_every_turn() -> None:
    steps = [step for program in some_programs() for step in all_steps(program.steps)]
    assert {way for step in steps if isinstance(step, Abandon) for way in step.ways.values()} == set(AbandonKind)
    assert {turns for step in steps if isinstance(step, Cancel) for turns in step.after.values()} == set(range(7))
    assert {turns for step in steps if isinstance(step, TaskGroupStep) for turns in step.fails.values()} == set(
        range(7)
    )


@pytest.mark.parametrize(
    "condition",
    [
        lambda program: all(expected.is_certain for expected in expectations_of(program).values()),
        goes_astray,
        lambda program: any(isinstance(step, Leave) for step in program.steps),
        lambda program: some_call(program, lambda expected: expected.unordered),
        lambda program: some_call(program, lambda expected: len(expected.mistaken) == 1),
        lambda program: any(isinstance(step, Branch) and step.channel for step in all_steps(program.steps)),
        lambda program: program.size > 3,
    ],
    ids=["certain", "astray", "leaving", "unordered", "mistaken", "channels", "large"],
)
def test_every_kind_of_program_is_common(condition: Callable[[Program], bool]) -> None:
    assert sum(map(condition, some_programs())) > SOME_PROGRAMS / 200


def test_every_error_is_met() -> None:
    met = frozenset[str]().union(*(run_program(seed).errors for seed in range(800)))
    assert met >= {
        "CancelledError",
        "CollectiveAborted",
        "CollectiveMismatch",
        "PeerLeft",
        "TensorInUse",
        "TimeoutError",
        "TypeError",
        "ValueError",
    }


# The command


def test_the_command_counts_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--programs", "5", "--first", "3"]) == 0
    assert capsys.readouterr().out.startswith("5 programs, 0 failing, ")


def test_the_command_wants_at_least_one_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--programs", "0"])
    assert "at least 1" in capsys.readouterr().err


def test_the_command_shows_the_program_that_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringwide.simulator.programs.world.verdict", lambda program, journals: ["a wrong sum"])
    assert main(["--programs", "1", "--first", "7"]) == 1
    told = capsys.readouterr().out
    assert "seed 7: a wrong sum" in told
    assert all(f"    {line}" in told for line in str(program_of(7)).splitlines())


@cache
def some_programs() -> list[Program]:
    return [program_of(seed) for seed in range(SOME_PROGRAMS)]


def some_call(program: Program, condition: Callable[[Expectation], bool]) -> bool:
    return any(map(condition, expectations_of(program).values()))
