import logging

import pytest

from ringwide.bootstrap.form_ring import PROBLEMS_PER_PEER, PeerProblems


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_two_problems_that_take_turns_are_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    problems = PeerProblems()
    for _ in range(100):
        problems.note(2, "host:1", "it hangs up")
        problems.note(2, "host:1", "it speaks HTTP")
    assert warnings(caplog) == ["rank 2 at host:1: it hangs up", "rank 2 at host:1: it speaks HTTP"]
    assert problems.of(2) == "it speaks HTTP"


def test_one_that_is_always_another_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    problems = PeerProblems()
    for number in range(1000):
        problems.note(1, "host:1", f"its first bytes are {number}")
    problems.note(3, "host:3", "it hangs up")
    assert len(warnings(caplog)) == PROBLEMS_PER_PEER + 1
    assert problems.of(1) == "its first bytes are 999"


def test_a_problem_that_is_solved_is_none() -> None:
    problems = PeerProblems()
    problems.note(1, "host:1", "it hangs up")
    problems.solved(1)
    problems.solved(2)
    assert problems.of(1) is problems.of(2) is None
