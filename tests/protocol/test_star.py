"""Every size from 1 to 17: rank 0 adds in the order of the ranks, whatever the order of arrivals, and all get that."""

from functools import reduce
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.pure_ring import PureRing, assert_all_ended, expected_at_the_start, own, plus, total
from ringwide.protocol.doubling import StopsMachine
from ringwide.protocol.star import star_schedule


def machines_of(size: int, segments: int) -> list[StopsMachine]:
    return [StopsMachine(star_schedule(rank=rank, size=size), segments=segments) for rank in range(size)]


def check(size: int, segments: int, chance: Random) -> PureRing:
    ring = PureRing(machines_of(size, segments), segments=segments)
    ring.run(chance)
    assert_all_ended(ring)
    for segment in range(segments):
        in_order = total(reduce(plus, [own(rank, segment) for rank in range(size)]))
        assert [values[segment] for values in ring.values] == [in_order] * size
    return ring


@pytest.mark.parametrize("size", range(1, 18))
def test_every_size(size: int) -> None:
    check(size, 2, Random(size))


@given(st.integers(1, 17), st.integers(1, 3), st.randoms(use_true_random=False))
def test_any_order_of_delivery(size: int, segments: int, chance: Random) -> None:
    check(size, segments, chance)


@pytest.mark.parametrize("size", range(1, 18))
def test_exactly_what_will_come_is_expected_and_that_is_little(size: int) -> None:
    expected = expected_at_the_start(machines_of(size, 2), segments=2)
    assert expected == check(size, 2, Random(0)).sent
    assert len(expected) == 2 * 2 * (size - 1)


def test_nobody_gives_twice_nor_in_the_name_of_another() -> None:
    hub = machines_of(4, 1)[0]
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
    for machine in machines_of(size, 1):
        assert [machine.combines(hop) for hop in range(1, size + 1)] == [True, True, True, False]


def test_it_says_for_whom_it_waits() -> None:
    machines = machines_of(4, 2)
    assert [list(machine.waiting_for()) for machine in machines] == [[1], [0], [0], [0]]
    machines[0].arrive(1, 1)
    assert list(machines[0].waiting_for()) == [1, 2]


def test_alone_it_is_done_at_once() -> None:
    (machine,) = machines_of(1, 1)
    assert machine.done
    assert machine.waiting_for() == ()
