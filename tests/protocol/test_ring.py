"""Every size from 1 to 17, every order of delivery: each rank completes, with each rank's numbers exactly once."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.pure_ring import PureRing, assert_all_ended, assert_is_total, expected_at_the_start, own
from ringwide.protocol.ring import Journey, Layout, RingMachine, RingSchedule

SIZES = range(1, 18)
sizes, pieces, chances = st.integers(1, 17), st.integers(1, 3), st.randoms(use_true_random=False)


def layout_of(chunks: int, segments_per_chunk: int) -> Layout:
    return Layout(chunks * segments_per_chunk, 1, chunks, 1)


def machines_of(journey: Journey, layout: Layout) -> list[RingMachine]:
    return [RingMachine(RingSchedule(rank=rank, layout=layout, journey=journey)) for rank in range(journey.size)]


def run(journey: Journey, layout: Layout, chance: Random) -> PureRing:
    ring = PureRing(machines_of(journey, layout), segments=layout.segments)
    ring.run(chance)
    assert_all_ended(ring)
    return ring


@pytest.mark.parametrize("size", SIZES[1:])
def test_allreduce_of_every_size(size: int) -> None:
    check_allreduce(size, 2, Random(size))


@given(sizes.filter(lambda size: size > 1), pieces, chances)
def test_allreduce_in_any_order_of_delivery(size: int, segments_per_chunk: int, chance: Random) -> None:
    check_allreduce(size, segments_per_chunk, chance)


def check_allreduce(size: int, segments_per_chunk: int, chance: Random) -> None:
    layout = layout_of(size, segments_per_chunk)
    ring = run(Journey.allreduce(size), layout, chance)
    for segment in range(layout.segments):
        values = [values[segment] for values in ring.values]
        assert_is_total(values[0], size)
        assert values == values[:1] * size, "combined in another order on another rank"


@given(sizes.filter(lambda size: size > 1), pieces, chances)
def test_reduce_scatter_gives_each_rank_the_total_of_its_chunk(size: int, pieces: int, chance: Random) -> None:
    layout = layout_of(size, pieces)
    ring = run(Journey.reduce_scatter(size), layout, chance)
    for rank in range(size):
        for segment in layout.segments_of(rank):
            assert_is_total(ring.values[rank][segment], size)


@given(sizes, pieces, chances)
def test_all_gather_gives_everyone_the_chunk_of_each_rank(size: int, pieces: int, chance: Random) -> None:
    layout = layout_of(size, pieces)
    ring = run(Journey.all_gather(size), layout, chance)
    for values in ring.values:
        assert values == [own(layout.chunk_of(segment), segment) for segment in range(layout.segments)]


@given(sizes, pieces, chances, st.data())
def test_broadcast_gives_everyone_what_the_root_has(
    size: int, pieces: int, chance: Random, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, size - 1))
    layout = layout_of(1, pieces)
    ring = run(Journey.broadcast(size, root), layout, chance)
    for values in ring.values:
        assert values == [own(root, segment) for segment in range(layout.segments)]


def journeys(size: int) -> list[tuple[Journey, Layout]]:
    return [
        (Journey.allreduce(size), layout_of(size, 2)),
        (Journey.reduce_scatter(size), layout_of(size, 2)),
        (Journey.all_gather(size), layout_of(size, 2)),
        (Journey.broadcast(size, size // 2), layout_of(1, 2)),
    ]


@pytest.mark.parametrize("size", range(2, 8))
def test_nothing_is_expected_that_never_comes(size: int) -> None:
    for journey, layout in journeys(size):
        expected = expected_at_the_start(machines_of(journey, layout), segments=layout.segments)
        assert expected <= run(journey, layout, Random(0)).sent


@pytest.mark.parametrize("size", [2, 3, 8])
def test_an_allreduce_sends_each_rank_two_laps_less_two_hops(size: int) -> None:
    sent = run(Journey.allreduce(size), layout_of(size, 1), Random(0)).sent
    assert len(sent) == size * 2 * (size - 1)
    assert all(peer == (rank + 1) % size for rank, peer, _, _ in sent)


def test_a_rank_waits_for_its_predecessor() -> None:
    machine = machines_of(Journey.allreduce(3), layout_of(3, 1))[0]
    assert list(machine.waiting_for()) == [2]


@pytest.mark.parametrize("size", SIZES[1:])
def test_the_first_lap_of_an_allreduce_adds_and_the_second_does_not(size: int) -> None:
    machine = machines_of(Journey.allreduce(size), layout_of(size, 1))[0]
    assert [machine.combines(hop) for hop in range(1, 2 * size - 1)] == [True] * (size - 1) + [False] * (size - 1)
