from itertools import product

import pytest

from ringwide.collective.plan import BucketShape, Kind, Planner, Request

SIZES = range(2, 18)
EXPRESS_BYTES = 100


def planners(size: int, algorithm: str, doubling_bytes: int) -> list[Planner]:
    return [
        Planner(
            rank=rank,
            size=size,
            segment_bytes=64,
            algorithm=algorithm,
            doubling_bytes=doubling_bytes,
            express_bytes=EXPRESS_BYTES,
        )
        for rank in range(size)
    ]


@pytest.mark.parametrize(
    ("algorithm", "doubling_bytes"), [("ring", 0), ("doubling", 0), ("star", 0), ("auto", 100), ("auto", 101)]
)
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


def test_where_the_star_carries_bulk_everybody_exchanges_it_with_rank_0() -> None:
    ranks = planners(8, "star", 0)
    assert all(ranks[0].exchanges_bulk(peer) for peer in range(1, 8))
    assert [peer for peer in range(8) if peer != 3 and ranks[3].exchanges_bulk(peer)] == [0, 2, 4]


# -- the star


def planner(algorithm: str = "auto", doubling_bytes: int = 100, *, crowded: bool, rank: int = 1) -> Planner:
    made = planners(6, algorithm, doubling_bytes)[rank]
    made.crowded = crowded
    return made


def algorithms(planner: Planner, kind: Kind, nbytes: int) -> list[str]:
    shapes = (BucketShape("uint8", nbytes, 1),) if nbytes else ()
    plan = planner.plan(Request(kind, "", shapes))
    return [part.algorithm for part in plan.parts]


@pytest.mark.parametrize(("crowded", "small"), [(False, "doubling"), (True, "star")])
def test_auto_takes_the_star_for_what_is_small_where_ranks_share_cores(crowded: bool, small: str) -> None:
    chosen = [planner(doubling_bytes=50, crowded=crowded).algorithm_for(nbytes) for nbytes in (0, 50, 51)]
    assert chosen == [small, small, "ring"]


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("algorithm", ["ring", "doubling", "star"])
def test_what_was_chosen_stays_chosen(algorithm: str, crowded: bool) -> None:
    chosen = planner(algorithm, crowded=crowded)
    assert [chosen.algorithm_for(nbytes) for nbytes in (0, 1000)] == [algorithm] * 2


@pytest.mark.parametrize("kind", [Kind.ALLREDUCE, Kind.REDUCE_SCATTER])
def test_the_star_of_bulk_has_segments_as_others_have(kind: Kind) -> None:
    (part,) = planner("star", crowded=False).plan(Request(kind, "", (BucketShape("uint8", 200, 1),))).parts
    assert (part.algorithm, part.express, part.layout.segments) == ("star", False, 4)


@pytest.mark.parametrize(
    ("settings", "crowded", "small"),
    [
        (("auto", 100), False, "doubling"),
        (("auto", 100), True, "star"),
        (("auto", EXPRESS_BYTES + 1), True, "doubling"),  # which carries bulk, and ranks have no lanes for another's
        (("doubling", 0), True, "doubling"),
        (("star", 0), False, "star"),
    ],
)
def test_all_that_is_small_goes_the_same_way(settings: tuple[str, int], crowded: bool, small: str) -> None:
    """Once a rank that called a barrier listened to a partner that gave to the star: nobody saw that they disagreed."""
    chosen = planner(*settings, crowded=crowded)
    assert algorithms(chosen, Kind.ALLREDUCE, 8) == [small]
    assert algorithms(chosen, Kind.REDUCE_SCATTER, 8) == [small]
    assert algorithms(chosen, Kind.BARRIER, 0) == [small]
    assert algorithms(chosen, Kind.BARRIER, 8) == [small]  # as when ranks join
    assert algorithms(chosen, Kind.BROADCAST, 8) == ["direct", small]
    assert algorithms(chosen, Kind.BROADCAST, 200) == ["ring", small]
