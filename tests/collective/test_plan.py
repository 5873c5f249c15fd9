from itertools import product

import pytest

from ringwide.collective.plan import Planner

SIZES = range(2, 18)


def planners(size: int, algorithm: str, doubling_bytes: int) -> list[Planner]:
    return [
        Planner(
            rank=rank,
            size=size,
            segment_bytes=64,
            algorithm=algorithm,
            doubling_bytes=doubling_bytes,
            express_bytes=100,
        )
        for rank in range(size)
    ]


@pytest.mark.parametrize(("algorithm", "doubling_bytes"), [("ring", 0), ("doubling", 0), ("auto", 100), ("auto", 101)])
def test_both_sides_agree_on_whether_they_exchange_bulk(algorithm: str, doubling_bytes: int) -> None:
    for size in SIZES:
        ranks = planners(size, algorithm, doubling_bytes)
        for one, other in product(range(size), repeat=2):
            assert one == other or ranks[one].exchanges_bulk(other) == ranks[other].exchanges_bulk(one)


@pytest.mark.parametrize(("algorithm", "doubling_bytes"), [("doubling", 0), ("auto", 101)])
def test_where_doubling_carries_bulk_its_partners_exchange_it(algorithm: str, doubling_bytes: int) -> None:
    """Once `auto` with a large `doubling_bytes` planned bulk for partners that had no lane for it."""
    ranks = planners(8, algorithm, doubling_bytes)
    assert [peer for peer in range(1, 8) if ranks[0].exchanges_bulk(peer)] == [1, 2, 4, 7]


@pytest.mark.parametrize(("algorithm", "doubling_bytes"), [("ring", 0), ("auto", 100)])
def test_otherwise_only_neighbours_do(algorithm: str, doubling_bytes: int) -> None:
    ranks = planners(8, algorithm, doubling_bytes)
    assert [peer for peer in range(1, 8) if ranks[0].exchanges_bulk(peer)] == [1, 7]
