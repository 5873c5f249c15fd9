from itertools import product

import pytest

from ringwide.collectives.plan import CollectiveKind, Plan, Planner, Request
from ringwide.collectives.running_collective import SAME_CALLER, Channel, Collective, Mark
from ringwide.tensors.bucket import BucketShape

SIZES = range(2, 18)
EXPRESS_BYTES = 100


def planners(size: int, algorithm: str = "auto", tree_bytes: int = 100, fanout: int | None = None) -> list[Planner]:
    return [
        Planner(
            rank=rank,
            size=size,
            segment_bytes=64,
            algorithm=algorithm,
            tree_bytes=tree_bytes,
            express_bytes=EXPRESS_BYTES,
            fanout=fanout,
        )
        for rank in range(size)
    ]


def request(kind: CollectiveKind, nbytes: int) -> Request:
    return Request(kind, "", (BucketShape("uint8", nbytes, 1),) if nbytes else ())


# -- lanes


@pytest.mark.parametrize("fanout", [1, 2, None])
@pytest.mark.parametrize(("algorithm", "tree_bytes"), [("ring", 0), ("tree", 0), ("auto", 100), ("auto", 101)])
def test_both_sides_agree_on_whether_they_exchange_bulk(algorithm: str, tree_bytes: int, fanout: int | None) -> None:
    for size in SIZES:
        ranks = planners(size, algorithm, tree_bytes, fanout)
        for one, other in product(range(size), repeat=2):
            assert one == other or ranks[one].exchanges_bulk(other) == ranks[other].exchanges_bulk(one)


@pytest.mark.parametrize(("algorithm", "tree_bytes"), [("tree", 0), ("auto", 101)])
def test_where_the_tree_carries_bulk_parents_and_children_exchange_it(algorithm: str, tree_bytes: int) -> None:
    """Once `auto` with a large limit planned bulk for partners that had no lane for it."""
    ranks = planners(10, algorithm, tree_bytes, fanout=3)
    assert [[peer for peer in range(10) if peer != rank and ranks[rank].exchanges_bulk(peer)] for rank in (0, 2)] == [
        [1, 2, 3, 9],
        [0, 1, 3, 7, 8, 9],
    ]


@pytest.mark.parametrize(("algorithm", "tree_bytes"), [("ring", 0), ("auto", 100)])
def test_otherwise_only_neighbours_do(algorithm: str, tree_bytes: int) -> None:
    ranks = planners(8, algorithm, tree_bytes)
    assert [peer for peer in range(1, 8) if ranks[0].exchanges_bulk(peer)] == [1, 7]


# -- the rule


def test_auto_takes_the_tree_for_what_is_small() -> None:
    chosen = [planners(6, tree_bytes=50)[1].algorithm_for(nbytes) for nbytes in (0, 50, 51)]
    assert chosen == ["tree", "tree", "ring"]


def test_what_ranks_agree_on_counts() -> None:
    planner = Planner(rank=1, size=6, segment_bytes=64, algorithm="auto", tree_bytes=200, express_bytes=300)
    (part,) = planner.plan(request(CollectiveKind.ALLREDUCE, 200)).parts
    assert (part.algorithm, part.express) == ("tree", True)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_what_was_chosen_stays_chosen(algorithm: str) -> None:
    chosen = planners(6, algorithm)[1]
    assert [chosen.algorithm_for(nbytes) for nbytes in (0, 1000)] == [algorithm] * 2


@pytest.mark.parametrize("kind", [CollectiveKind.ALLREDUCE, CollectiveKind.REDUCE_SCATTER])
def test_the_tree_of_bulk_has_segments_as_others_have(kind: CollectiveKind) -> None:
    (part,) = planners(6, "tree")[1].plan(request(kind, 200)).parts
    assert (part.algorithm, part.express, part.layout.segments) == ("tree", False, 4)


@pytest.mark.parametrize("settings", [("auto", 100), ("auto", EXPRESS_BYTES + 1), ("tree", 0), ("ring", 0)])
def test_all_that_is_small_takes_the_same_tree(settings: tuple[str, int]) -> None:
    """Once a rank that called a barrier listened to a partner that gave to another: nobody saw that they disagreed."""
    planner = planners(6, *settings)[1]
    calls = [
        (CollectiveKind.ALLREDUCE, 8),
        (CollectiveKind.REDUCE_SCATTER, 8),
        (CollectiveKind.BARRIER, 0),
        (CollectiveKind.BARRIER, 8),
        (CollectiveKind.BROADCAST, 8),
    ]
    parts = [planner.plan(request(*call)).parts[-1] for call in calls]
    trees = [(part.algorithm, part.fanout) for part in parts if part.algorithm != "ring"]
    assert set(trees) == {("tree", 5)}
    assert len(trees) == (3 if settings[0] == "ring" else 5)


# -- the fingerprint


def plan_of(*, tree_bytes: int = 50, segment_bytes: int = 64, express_bytes: int = 100, fanout: int = 2) -> Plan:
    planner = Planner(
        rank=1,
        size=3,
        segment_bytes=segment_bytes,
        algorithm="auto",
        tree_bytes=tree_bytes,
        express_bytes=express_bytes,
        fanout=fanout,
    )
    return planner.plan(Request(CollectiveKind.ALLREDUCE, "sum", (BucketShape("float32", 20, 4),)))


@pytest.mark.parametrize(
    ("one", "other", "ours", "theirs"),
    [
        ({}, {"tree_bytes": 80}, "ring over bulk lanes", "tree with fan-out 2 over express lanes"),
        ({}, {"segment_bytes": 32}, "segments of 64 bytes", "segments of 32 bytes"),
        ({"tree_bytes": 80}, {"tree_bytes": 80, "fanout": 1}, "with fan-out 2", "with fan-out 1"),
        ({"tree_bytes": 80}, {"tree_bytes": 80, "express_bytes": 10}, "over express lanes", "over bulk lanes"),
    ],
)
def test_ranks_that_go_about_it_differently_have_other_fingerprints(
    one: dict[str, int], other: dict[str, int], ours: str, theirs: str
) -> None:
    """And the words with which they tell each other say in what they differ."""
    here, there = plan_of(**one), plan_of(**other)
    assert here.what == there.what == "allreduce(sum)"
    assert here.fingerprint != there.fingerprint
    told = called(here).compared_with(called(there).described)
    assert told[:2] == (f"allreduce(sum) by {here.how}", f"allreduce(sum) by {there.how}")
    assert ours in told[0]
    assert theirs in told[1]


def test_ranks_that_were_asked_for_something_else_are_told_apart_by_that() -> None:
    other = planners(3)[0].plan(Request(CollectiveKind.BARRIER, "", ()))
    assert called(plan_of()).compared_with(called(other).described)[:2] == ("allreduce(sum)", "barrier()")


def test_ranks_on_which_another_task_calls_are_told_so() -> None:
    ours, theirs = (called(plan_of(), CallOf(n)) for n in (1, 2))
    assert ours.fingerprint != theirs.fingerprint
    assert ours.compared_with(theirs.described) == (
        "allreduce(sum) as call 1 of the one that joined",
        "it as call 2 of the one that joined",
        SAME_CALLER,
    )


class CallOf:
    def __init__(self, bits: int) -> None:
        self.bits = bits

    def __str__(self) -> str:
        return f"call {self.bits} of the one that joined"


def called(plan: Plan, mark: Mark | None = None) -> Collective:
    return Collective(1, plan, lambda _: None, channel=Channel(""), mark=mark)


def test_all_ranks_of_a_ring_have_the_same_fingerprint() -> None:
    for kind, nbytes in product(CollectiveKind, (0, 8, 200)):
        assert len({planner.plan(request(kind, nbytes)).fingerprint for planner in planners(9, fanout=2)}) == 1
