"""Every size from 1 to 17, powers of two or not: everyone gets one total, made of the same pairs in the same order."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.pure_ring import PureRing, Term, assert_all_ended, assert_is_total, expected_at_the_start, owners
from ringwide.protocol.doubling import Step, StopsMachine, doubling_schedule
from ringwide.protocol.instruction import Combine, Finish, Instruction, Keep, Script, Send
from ringwide.protocol.star import star_schedule


def machines_of(size: int, segments: int) -> list[StopsMachine]:
    return [StopsMachine(doubling_schedule(rank=rank, size=size), segments=segments) for rank in range(size)]


def run(size: int, segments: int, chance: Random) -> PureRing:
    ring = PureRing(machines_of(size, segments), segments=segments)
    ring.run(chance)
    assert_all_ended(ring)
    return ring


def check(size: int, segments: int, chance: Random) -> None:
    ring = run(size, segments, chance)
    for segment in range(segments):
        values = [values[segment] for values in ring.values]
        assert_is_total(values[0], size)
        assert values == values[:1] * size, "combined in another order on another rank"


@pytest.mark.parametrize("size", range(1, 18))
def test_every_size(size: int) -> None:
    check(size, 2, Random(size))


@given(st.integers(1, 17), st.integers(1, 3), st.randoms(use_true_random=False))
def test_any_order_of_delivery(size: int, segments: int, chance: Random) -> None:
    check(size, segments, chance)


@pytest.mark.parametrize("size", range(2, 18))
def test_the_lower_rank_always_stands_first(size: int) -> None:
    assert_lower_first(run(size, 1, Random(0)).values[0][0])


def assert_lower_first(term: Term) -> None:
    match term:
        case ("plus", tuple(left), tuple(right)):
            assert min(owners(left)) < min(owners(right))
            assert_lower_first(left)
            assert_lower_first(right)
        case ("total", tuple(inner)):
            assert_lower_first(inner)


@pytest.mark.parametrize("size", range(2, 18))
def test_nothing_is_expected_that_never_comes(size: int) -> None:
    expected = expected_at_the_start(machines_of(size, 2), segments=2)
    assert expected <= run(size, 2, Random(0)).sent


@pytest.mark.parametrize(("size", "hops"), [(2, 1), (4, 2), (8, 3), (16, 4), (3, 3), (9, 5), (15, 5)])
def test_the_hops_are_few(size: int, hops: int) -> None:
    """log2 for a power of two; otherwise one before and one after."""
    assert len({hop for _, _, _, hop in run(size, 1, Random(0)).sent}) == hops


def test_it_says_for_whom_it_waits() -> None:
    machines = machines_of(3, 1)
    assert [list(machine.waiting_for()) for machine in machines] == [[2], [0], [0]]


def test_a_segment_that_does_not_exist_is_not_expected() -> None:
    assert not machines_of(2, 1)[0].expects(1, 1, 1)


@pytest.mark.parametrize("size", range(1, 18))
def test_a_step_says_what_its_script_says(size: int) -> None:
    for schedule in [way(rank=rank, size=size) for way in (doubling_schedule, star_schedule) for rank in range(size)]:
        scripts = [schedule.departure, *(stop.script for stop in schedule.stops)]
        steps = [schedule.first_step, *schedule.steps]
        assert list(map(named, map(spelled_out, steps))) == list(map(named, scripts))


def spelled_out(step: Step) -> Script:
    """In the only order in which a step is carried out."""
    combine = (Combine(step.arrival_first),) if step.combines else ()
    keep, finish = (Keep(),) if step.keeps else (), (Finish(),) if step.finishes else ()
    return (*combine, *keep, *finish, *(Send(step.hop, peer) for peer in step.peers))


def named(script: Script) -> list[tuple[str, Instruction]]:
    """An instruction without fields equals every other one without."""
    return [(type(instruction).__name__, instruction) for instruction in script]
