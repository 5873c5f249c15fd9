"""Every size from 1 to 17 and every fan-out: one rank makes the total, in the order of ranks, and all get that."""

from functools import reduce
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.pure_ring import (
    PureRing,
    Term,
    assert_all_ended,
    assert_is_total,
    expected_at_the_start,
    own,
    plus,
    total,
)
from ringwide.protocol.instruction import Combine, Finish, Instruction, Keep, Script, Send
from ringwide.protocol.tree import FANOUT, STAR_LIMIT_RANKS, TreeMachine, TreeSchedule, TreeStep, depth, fanout_of

SHAPES = [(size, fanout) for size in range(1, 18) for fanout in (1, 2, 3, 4, max(1, size - 1))]
every_shape = pytest.mark.parametrize(("size", "fanout"), SHAPES)


def machines_of(size: int, fanout: int, segments: int) -> list[TreeMachine]:
    schedules = [TreeSchedule(rank=rank, size=size, fanout=fanout) for rank in range(size)]
    return [TreeMachine(schedule, segments=segments) for schedule in schedules]


def sum_of_subtree(rank: int, segment: int, size: int, fanout: int) -> Term:
    children = range(rank * fanout + 1, min(size, rank * fanout + fanout + 1))
    return reduce(plus, [sum_of_subtree(child, segment, size, fanout) for child in children], own(rank, segment))


def check(size: int, fanout: int, segments: int, chance: Random) -> PureRing:
    ring = PureRing(machines_of(size, fanout, segments), segments=segments)
    ring.run(chance)
    assert_all_ended(ring)
    for segment in range(segments):
        in_order = total(sum_of_subtree(0, segment, size, fanout))
        assert_is_total(in_order, size)
        assert [values[segment] for values in ring.values] == [in_order] * size
    return ring


@every_shape
def test_every_shape(size: int, fanout: int) -> None:
    check(size, fanout, 2, Random(size))


@given(st.integers(1, 17), st.integers(1, 17), st.integers(1, 3), st.randoms(use_true_random=False))
def test_any_order_of_delivery(size: int, fanout: int, segments: int, chance: Random) -> None:
    check(size, fanout, segments, chance)


@every_shape
def test_exactly_what_will_come_is_expected_and_that_is_little(size: int, fanout: int) -> None:
    expected = expected_at_the_start(machines_of(size, fanout, 2), segments=2)
    assert expected == check(size, fanout, 2, Random(0)).sent
    assert len(expected) == 2 * 2 * (size - 1)


@every_shape
def test_only_the_root_finishes_and_all_others_keep(size: int, fanout: int) -> None:
    """One owner for every bit: nobody but the root computes a total."""
    for rank in range(size):
        schedule = TreeSchedule(rank=rank, size=size, fanout=fanout)
        steps = [schedule.first_step, *schedule.steps]
        assert sum(step.finishes for step in steps) == (rank == 0)
        assert sum(step.keeps for step in steps) == (rank > 0)


def test_nobody_gives_twice_nor_in_the_name_of_another() -> None:
    hub = machines_of(4, 3, 1)[0]
    assert hub.expects(2, 0, 2)
    assert hub.arrive(0, 2) == ()  # rank 1 comes first
    assert not hub.expects(2, 0, 1)
    assert hub.arrive(0, 1)
    assert hub.arrive(0, 2)
    assert not hub.expects(1, 0, 1)
    assert not hub.expects(2, 0, 2)
    assert hub.expects(3, 0, 3)


def test_only_a_total_is_kept() -> None:
    size = 4
    for machine in machines_of(size, 2, 1):
        assert [machine.combines(hop) for hop in range(1, size + 1)] == [True, True, True, False]


def test_it_says_for_whom_it_waits() -> None:
    machines = machines_of(6, 2, 2)
    assert [list(machine.waiting_for()) for machine in machines] == [[1], [3], [5], [1], [1], [2]]
    machines[0].arrive(1, 1)
    assert list(machines[0].waiting_for()) == [1, 2]


def test_alone_it_is_done_at_once() -> None:
    (machine,) = machines_of(1, 1, 1)
    assert machine.done
    assert machine.waiting_for() == ()


def test_a_segment_that_does_not_exist_is_not_expected() -> None:
    assert not machines_of(2, 1, 1)[0].expects(1, 1, 1)


@pytest.mark.parametrize(("size", "fanout"), [(1, 1), (2, 1), (16, 15), (17, 8), (1000, 8)])
def test_the_shape_follows_from_the_size_alone(size: int, fanout: int) -> None:
    assert (fanout_of(size), STAR_LIMIT_RANKS, FANOUT) == (fanout, 16, 8)


@pytest.mark.parametrize(("size", "hops"), [(1, 0), (2, 1), (16, 1), (17, 2), (73, 2), (74, 3)])
def test_the_hops_are_few(size: int, hops: int) -> None:
    assert depth(size) == hops


@every_shape
def test_a_step_says_what_its_script_says(size: int, fanout: int) -> None:
    for schedule in [TreeSchedule(rank=rank, size=size, fanout=fanout) for rank in range(size)]:
        scripts = [schedule.departure, *(stop.script for stop in schedule.stops)]
        steps = [schedule.first_step, *schedule.steps]
        assert list(map(named, map(spelled_out, steps))) == list(map(named, scripts))


def spelled_out(step: TreeStep) -> Script:
    """In the only order in which a step is carried out."""
    combine = (Combine(False),) if step.combines else ()
    keep, finish = (Keep(),) if step.keeps else (), (Finish(),) if step.finishes else ()
    return (*combine, *keep, *finish, *(Send(step.hop, peer) for peer in step.peers))


def named(script: Script) -> list[tuple[str, Instruction]]:
    """An instruction without fields equals every other one without."""
    return [(type(instruction).__name__, instruction) for instruction in script]
