from random import Random

from hypothesis import given
from hypothesis import strategies as st

from protocol.pure_ring import PureRing, assert_all_ended, expected_at_the_start, own
from ringwide.protocol.direct import DirectMachine

senders_of_all = st.integers(1, 17).flatmap(
    lambda size: st.tuples(st.just(size), st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
)


def machines_of(size: int, senders: list[int]) -> list[DirectMachine]:
    return [DirectMachine(rank=rank, size=size, senders=dict(enumerate(senders))) for rank in range(size)]


@given(senders_of_all, st.randoms(use_true_random=False))
def test_everyone_gets_every_segment_from_its_sender(drawn: tuple[int, list[int]], chance: Random) -> None:
    size, senders = drawn
    ring = PureRing(machines_of(size, senders), segments=len(senders))
    ring.run(chance)
    assert_all_ended(ring)
    for values in ring.values:
        assert values == [own(sender, segment) for segment, sender in enumerate(senders)]


@given(senders_of_all)
def test_exactly_what_comes_is_expected(drawn: tuple[int, list[int]]) -> None:
    size, senders = drawn
    ring = PureRing(machines_of(size, senders), segments=len(senders))
    ring.run(Random(0))
    assert expected_at_the_start(machines_of(size, senders), segments=len(senders)) == ring.sent


def test_it_says_for_whom_it_waits() -> None:
    machine = machines_of(4, [0, 3, 2, 3])[0]
    assert list(machine.waiting_for()) == [2, 3]
    machine.arrive(2, 1)
    assert list(machine.waiting_for()) == [3]


def test_nothing_is_added_on_the_way() -> None:
    assert not machines_of(3, [0, 1])[0].combines(1)
