"""How long a run may take, and how long it will."""

import pytest
from bench.speed.budget import Budget
from bench.speed.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def rounds_within(budget: Budget, clock: Clock, ranks: int, seconds: float) -> int:
    """How many rounds of so many seconds it allows, up to ten."""
    budget.begin(ranks)
    for number in range(1, 11):
        budget.begin_round()
        clock.now += seconds
        if not budget.allows_another():
            return number
    return 10


def test_more_ranks_get_more_of_the_time() -> None:
    clock = Clock()
    budget = Budget(140, [2, 4, 8], clock)
    assert [rounds_within(budget, clock, ranks, 2.5 * ranks) for ranks in (2, 4, 8)] == [4, 4, 4]
    assert clock.now == 1140


def test_what_one_leaves_over_the_next_may_use() -> None:
    clock = Clock()
    budget = Budget(100, [2, 8], clock)
    budget.begin(2)
    assert rounds_within(budget, clock, 8, 25) == 4


def test_there_is_always_one_round_and_without_a_budget_all() -> None:
    clock = Clock()
    assert rounds_within(Budget(10, [2], clock), clock, 2, 1000) == 1
    assert rounds_within(Budget(None, [2], clock), clock, 2, 1000) == 10


def test_what_is_left_is_told_from_the_pace_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = Progress([2, 4], 3, clock)
    clock.now += 7  # to start processes
    progress.begin_rounds()
    clock.now += 10
    progress.round_done(2, 0)
    assert progress.seconds_left() == 2 * 10 + 3 * 20
    assert "2 ranks, round 1 of 3 took 10 s; about 80 s left" in capsys.readouterr().err
    progress.cut_short(2)
    assert progress.seconds_left() == 3 * 20
