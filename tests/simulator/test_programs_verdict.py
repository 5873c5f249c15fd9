"""Verdict on a program: what it allows, and what it does not."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from ringwide.errors import CollectiveAborted, CollectiveMismatch, CollectiveTimeout, PeerLeft, PeerLost
from ringwide.simulator.programs.journal import ProgramNumbers, RankJournal, expected_memory
from ringwide.simulator.programs.program import Await, Leave, Mistake, Program, ProgramCall, Step, WaitFor
from ringwide.simulator.programs.verdict import verdict
from simulator.programs import Script

SIZE = 2


def journals_of(
    call: ProgramCall, *outcomes: object, told: Callable[[int, RankJournal], None] | None = None
) -> list[RankJournal]:
    """Of ranks that have made one call: `True` is its result, an error that error, and None no end at all."""
    materials = [ProgramNumbers(call, rank, SIZE) for rank in range(SIZE)]
    journals = [RankJournal(through=True) for _ in materials]
    brought = [[array.copy() for array in call_numbers.memory] for call_numbers in materials]
    for rank, (call_numbers, journal, outcome) in enumerate(zip(materials, journals, outcomes, strict=True)):
        journal.open(call.index, call_numbers.memory)
        if outcome is True:
            for array, result in zip(call_numbers.memory, expected_memory(call, rank, brought), strict=True):
                array[...] = result
        if outcome is not None:
            journal.close(call.index, call_numbers.memory if outcome is True else outcome)
        if told is not None:
            told(rank, journal)
        journal.conclude()
    return journals


def judged(step: Step, call: ProgramCall, *outcomes: object, **how: Callable[[int, RankJournal], None]) -> list[str]:
    return verdict(Program(0, SIZE, (step,)), journals_of(call, *outcomes, **how))


PLAIN = Script().allreduce()
MISTAKEN = Script().allreduce(rank0=Mistake.READ_ONLY)
HURRIED = Script().allreduce()
HURRY = WaitFor(HURRIED, {0: 0.0})
ABORTED_BY_0, ABORTED_BY_1 = (CollectiveAborted(number=1, what="", by=rank, reason="") for rank in range(2))
MISMATCH = CollectiveMismatch(number=1, rank=0, ours="", other_rank=1, theirs="")
TIMED_OUT = CollectiveTimeout(number=1, what="", waiting_for=[1], seconds=1.0)


def test_an_exact_result_on_all_ranks_is_right() -> None:
    assert not judged(Await(PLAIN), PLAIN, True, True)


def test_a_wrong_number_is_wrong() -> None:
    def spoil(rank: int, journal: RankJournal) -> None:
        journal.entries[0].memory[0][0] += rank
        journal.entries[0].after = tuple(array.copy() for array in journal.entries[0].memory)

    assert judged(Await(PLAIN), PLAIN, True, True, told=spoil)


@pytest.mark.parametrize("error", [MISMATCH, ABORTED_BY_1, TIMED_OUT, PeerLeft(rank=1, reason=""), ValueError("x")])
def test_nothing_explains_an_error_of_a_plain_call(error: Exception) -> None:
    assert judged(Await(PLAIN), PLAIN, error, True)


@pytest.mark.parametrize(
    ("outcomes", "right"),
    [
        ((ValueError(), ABORTED_BY_0), True),
        ((ValueError(), True), False),  # how could it?
        ((True, True), False),
        ((ValueError(), ABORTED_BY_1), False),
        ((ValueError(), MISMATCH), False),
        ((AttributeError(), ABORTED_BY_0), False),
    ],
)
def test_a_mistake_is_told_to_all(outcomes: tuple[object, ...], right: bool) -> None:
    assert (not judged(Await(MISTAKEN), MISTAKEN, *outcomes)) is right


@pytest.mark.parametrize(
    ("outcomes", "right"),
    [
        ((TimeoutError(), ABORTED_BY_0), True),
        ((TimeoutError(), True), True),
        ((True, True), True),
        ((True, TimeoutError()), False),
        ((asyncio.CancelledError(), PeerLost(rank=0, reason="")), False),
    ],
)
def test_who_has_no_time_may_end_it_for_all(outcomes: tuple[object, ...], right: bool) -> None:
    assert (not judged(HURRY, HURRIED, *outcomes)) is right


def test_memory_is_left_alone_after_an_error() -> None:
    def write_later(rank: int, journal: RankJournal) -> None:
        journal.entries[0].memory[0][0] = 99

    assert judged(HURRY, HURRIED, TimeoutError(), ABORTED_BY_0, told=write_later)


def test_a_call_that_never_ends_is_noticed() -> None:
    assert judged(Await(PLAIN), PLAIN, None, True)
    assert judged(Await(PLAIN), PLAIN, True, True, told=lambda _, journal: setattr(journal, "through", False))


def test_who_left_is_named_by_the_others() -> None:
    program = Program(0, SIZE, (Leave(1), Await(PLAIN)))
    here, _ = journals_of(PLAIN, PeerLeft(rank=1, reason=""), None)
    assert not verdict(program, [here, RankJournal(through=True)])
    here, _ = journals_of(PLAIN, PeerLost(rank=1, reason=""), None)
    assert verdict(program, [here, RankJournal(through=True)])


def test_what_a_call_returns_is_looked_at() -> None:
    from ringwide.collectives.plan import CollectiveKind

    call = Script().call(CollectiveKind.ALL_GATHER, ("int64", 2))
    parts = [ProgramNumbers(call, rank, SIZE).memory[0] for rank in range(SIZE)]
    assert not judged(Await(call), call, list(parts), list(parts))
    assert judged(Await(call), call, list(parts), [np.zeros(2, np.int64), parts[1]])
