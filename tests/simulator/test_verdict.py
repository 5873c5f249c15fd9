"""Verdict on the end of a call: the rank that an error names must be involved in the fault."""

from dataclasses import replace
from math import inf

import pytest

from ringwide.errors import (
    CollectiveAborted,
    CollectiveMismatch,
    CollectiveTimeout,
    CorruptFrame,
    PeerLeft,
    PeerLost,
    RingwideError,
)
from ringwide.simulator.scenario import Damage, Fault, FaultKind, scenario_of
from ringwide.simulator.verdict import explains, follows, must_fail, patience, woken_at

CALL = 1
LOST_0, LOST_1, LOST_2 = (PeerLost(rank=rank, reason="") for rank in range(3))
LEFT_0, LEFT_1 = (PeerLeft(rank=rank, reason="") for rank in range(2))
TIMED_OUT = CollectiveTimeout(number=2, what="", waiting_for=[0], seconds=4.0)
ABORTED = CollectiveAborted(number=2, what="", by=0, reason="")
MISMATCH = CollectiveMismatch(number=2, rank=0, ours="", other_rank=1, theirs="")
CORRUPT = CorruptFrame("")


def fault(kind: FaultKind, **details: object) -> Fault:
    """Of rank 0, or between ranks 0 and 1 of three."""
    return replace(scenario_of(0).fault, kind=kind, rank=0, peer=1, call=CALL, wide=False, lasts=inf, **details)


@pytest.mark.parametrize(
    ("injected", "rank", "allowed", "refused"),
    [
        (fault(FaultKind.KILL), 2, [LOST_0], [LOST_1, LEFT_1, TIMED_OUT, CORRUPT]),
        (fault(FaultKind.RESET), 2, [LOST_0, LOST_1], [LOST_2, TIMED_OUT]),
        (fault(FaultKind.HOLE), 2, [LOST_0, LOST_1], [LOST_2, TIMED_OUT]),
        (replace(fault(FaultKind.HOLE), wide=True), 2, [LOST_0], [LOST_1, TIMED_OUT]),
        (replace(fault(FaultKind.HOLE), wide=True), 0, [LOST_1, LOST_2], [TIMED_OUT]),
        (fault(FaultKind.FREEZE), 2, [LOST_0], [LOST_1, TIMED_OUT]),
        (fault(FaultKind.FREEZE), 0, [LOST_1, LOST_2, TIMED_OUT], [CORRUPT]),
        (fault(FaultKind.LATE), 2, [TIMED_OUT], [LOST_0, ABORTED]),
        (fault(FaultKind.ABORT), 2, [ABORTED, LEFT_0], [LOST_0, TIMED_OUT, MISMATCH]),
        (fault(FaultKind.MISMATCH), 2, [MISMATCH], [ABORTED, LOST_0]),
        (fault(FaultKind.DAMAGE, damage=Damage.GARBLED), 1, [CORRUPT, LOST_0], [LOST_2, TIMED_OUT]),
        (fault(FaultKind.DAMAGE, damage=Damage.GARBLED), 2, [LOST_0, LOST_1], [CORRUPT, LOST_2]),
        (fault(FaultKind.NONE), 2, [], [LOST_0, LEFT_0, TIMED_OUT, ABORTED, MISMATCH, CORRUPT]),
    ],
)
def test_only_what_a_fault_explains_is_allowed(
    injected: Fault, rank: int, allowed: list[RingwideError], refused: list[RingwideError]
) -> None:
    for error in allowed:
        assert explains(injected, rank, CALL, error, second=False), error
    for error in refused:
        assert not explains(injected, rank, CALL, error, second=False), error


def test_no_call_succeeds_in_which_not_all_took_part() -> None:
    assert must_fail(fault(FaultKind.MISMATCH), CALL)
    assert not must_fail(fault(FaultKind.MISMATCH), CALL + 1)
    assert must_fail(fault(FaultKind.LEAVE), CALL + 1)
    assert must_fail(fault(FaultKind.LATE), CALL)
    assert not must_fail(replace(fault(FaultKind.LATE), lasts=2.0), CALL)
    assert not must_fail(fault(FaultKind.KILL), CALL)


def test_only_who_has_left_may_be_said_to_have_left() -> None:
    killed = [fault(FaultKind.KILL)]
    assert follows(LEFT_1, killed, [False, True, False])
    assert not follows(LEFT_1, killed, [False, False, True])
    assert not follows(LEFT_1, [fault(FaultKind.NONE)], [False, True, False])


def test_a_kill_is_known_sooner_than_a_freeze_and_both_before_the_timeout() -> None:
    scenario = replace(
        scenario_of(0), conditions=replace(scenario_of(0).conditions, latency=0.0, codec_delay=0.0, pause=0.0)
    )
    kill, freeze = (
        patience(replace(scenario, size=3, faults=(fault(kind),))) for kind in (FaultKind.KILL, FaultKind.FREEZE)
    )
    assert kill < freeze < 2.0


def test_a_frozen_rank_has_time_from_when_it_goes_on() -> None:
    injected = [(1.0, replace(fault(FaultKind.FREEZE), lasts=2.0)), (1.5, fault(FaultKind.KILL))]
    assert woken_at(0, injected) == 3.0
    assert woken_at(1, injected) == 0.0
