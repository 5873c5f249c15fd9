"""Stragglers: the rank that is named as the slow one, and those that are not."""

import pytest

from ringwide.health.stragglers import HALVED_AFTER_SECONDS, SlowRank, Stragglers


class Time:
    """Passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def noting(rank: int = 0) -> Stragglers:
    return Stragglers(rank, Time())


def named(stragglers: Stragglers) -> SlowRank:
    found = stragglers.verdict()
    assert found is not None
    return found


def test_nobody_is_slow_at_first() -> None:
    assert noting().verdict() is None


def test_one_that_calls_late() -> None:
    stragglers = noting()
    stragglers.note_late(2, 3.0)
    stragglers.note_late(1, 0.25)
    assert named(stragglers) == SlowRank(2, 3.0, "others have waited 3.0 s for its calls")
    assert str(named(stragglers)) == "rank 2 is slow: others have waited 3.0 s for its calls"


def test_a_short_wait_is_nobodys_fault() -> None:
    stragglers = noting()
    stragglers.note_late(2, 0.9)
    assert stragglers.verdict() is None


def test_if_all_are_equally_late_nobody_is_slow() -> None:
    stragglers = noting()
    for rank in (1, 2, 3):
        stragglers.note_late(rank, 5.0)
    assert stragglers.verdict() is None


@pytest.mark.parametrize("here", [0, 1, 2, 3])
def test_one_whose_links_are_slow_is_named_by_all_itself_included(here: int) -> None:
    """In a ring of four, bytes are stuck from rank 1 to rank 2 and from rank 2 to rank 3."""
    stuck = {0: (1, 0.2), 1: (2, 6.0), 2: (3, 5.0), 3: (0, 0.1)}
    stragglers = noting(here)
    stragglers.note_stuck(*stuck.pop(here))
    for teller, (rank, seconds) in stuck.items():
        stragglers.note_stuck_elsewhere(teller, rank, seconds)
    assert named(stragglers).rank == 2


def test_of_a_single_slow_link_neither_end_is_named() -> None:
    stragglers = noting()
    stragglers.note_stuck_elsewhere(1, 2, 6.0)
    assert stragglers.verdict() is None


def test_one_that_is_far_away() -> None:
    stragglers = noting()
    for seconds in (0.41, 0.40, 0.9):
        stragglers.note_round_trip(2, seconds)
    stragglers.note_round_trip(1, 0.002)
    assert named(stragglers).rank == 2
    assert named(stragglers).reason == "its answers take 400 ms, those of the nearest rank 2.0 ms"
    assert stragglers.round_trip(2) == 0.40


def test_bytes_that_are_stuck_because_one_is_far_away() -> None:
    """All ranks wait for it, so bytes of others are stuck as well."""
    stragglers = noting()
    stragglers.report(5.0)
    stragglers.note_round_trip(2, 0.4)
    stragglers.note_round_trip(1, 0.002)
    stragglers.note_stuck(1, 2.0)
    stragglers.note_stuck_elsewhere(3, 0, 2.0)
    assert named(stragglers).rank == 2


def test_if_all_are_far_away_it_is_our_own_place() -> None:
    stragglers = noting()
    for rank in (1, 2, 3):
        stragglers.note_round_trip(rank, 0.4)
    assert stragglers.verdict() is None


def test_on_a_machine_that_is_too_busy_nobody_is_far_away() -> None:
    stragglers = noting()
    stragglers.note_round_trip(1, 0.12)
    stragglers.note_round_trip(2, 0.6)
    assert stragglers.verdict() is None


def test_the_slow_one_is_named_again_when_it_has_cost_twice_as_much(caplog: pytest.LogCaptureFixture) -> None:
    stragglers = noting()
    for _ in range(10):
        stragglers.note_late(2, 0.5)
        stragglers.report(0.5)
    assert [record.getMessage() for record in caplog.records] == [
        f"rank 2 is slow: others have waited {seconds} s for its calls" for seconds in ("1.0", "2.0", "4.0")
    ]


def test_what_costs_more_is_named_whatever_was_noted_first() -> None:
    stragglers = noting()
    stragglers.note_late(1, 1.2)
    stragglers.note_stuck_elsewhere(1, 2, 40.0)
    stragglers.note_stuck_elsewhere(2, 3, 40.0)
    assert named(stragglers).rank == 2


def test_a_slow_start_is_forgotten() -> None:
    time = Time()
    stragglers = Stragglers(0, time)
    stragglers.note_late(1, 5.0)
    assert named(stragglers).rank == 1
    time.now += 3 * HALVED_AFTER_SECONDS
    assert stragglers.verdict() is None
    assert stragglers.late.total[1] == 5.0
