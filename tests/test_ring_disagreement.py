"""Ranks that do different things in one call hear of it at once, wherever they are in the tree and whatever differs."""

from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import ringwide
from local_ring import error_of, on_every_rank
from ringwide import Ring
from ringwide.collectives.plan import BucketPlan

Say = Callable[[Ring], Awaitable[Any]]
CALLS: dict[str, Say] = {
    "barrier": lambda ring: ring.barrier(),
    "small sum": lambda ring: ring.allreduce(np.ones(8)),
    "other sum": lambda ring: ring.allreduce(np.ones(9)),
    "large sum": lambda ring: ring.allreduce(np.ones(200_000)),
    "formation": lambda ring: ring.all_gather(np.ones(8)),
    "broadcast": lambda ring: ring.broadcast(np.ones(8), root=ring.size - 1),
    "scattering": lambda ring: ring.reduce_scatter(np.ones(200_000)),
}
SOON_SECONDS = 10
"""A disagreement that nobody notices ends by this deadline, and not as a mismatch."""


def deep(monkeypatch: pytest.MonkeyPatch, fanout: int) -> None:
    """Trees with ranks that wait for children and have a parent, in small rings too."""
    monkeypatch.setattr("ringwide.collectives.plan.fanout_of", lambda size: fanout)


async def mismatches(ring: Ring, odd: int, most: Say, one: Say) -> bool:
    """One rank says something else: is it a mismatch here, and does the ring work on?"""
    error = await error_of(one(ring) if ring.rank == odd else most(ring))
    assert isinstance(error, ringwide.CollectiveMismatch), error
    assert odd in (error.rank, error.other_rank)
    return bool((await ring.allreduce(np.ones(3), "sum") == ring.size).all())


@pytest.mark.parametrize(("size", "fanout"), [(6, 2), (9, 1), (9, 3), (17, 8)])
async def test_any_rank_that_says_something_else_is_heard_at_once(
    size: int, fanout: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep(monkeypatch, fanout)
    pairs = list(product(("barrier", "small sum"), CALLS))

    async def act(ring: Ring) -> bool:
        for number, (most, one) in enumerate((most, one) for most, one in pairs if most != one):
            for odd in range(number % 2, size, 2):
                assert await mismatches(ring, odd, CALLS[most], CALLS[one])
        return True

    settings = {"same_host": "tcp", "collective_timeout_seconds": SOON_SECONDS}
    assert await on_every_rank(size, act, **settings) == [True] * size


# -- asked for the same, and going about it differently


PLANNED_OTHERWISE: dict[str, tuple[dict[str, int], tuple[str, str]]] = {
    "algorithm": ({"_tree_bytes": 0}, ("tree with fan-out 2 over express lanes", "ring over bulk lanes")),
    "lanes": ({"_express_bytes": 0}, ("over express lanes", "over bulk lanes")),
    "segments": ({"_segment_bytes": 2048}, ("segments of 4096 bytes", "segments of 2048 bytes")),
}


async def plans_otherwise(ring: Ring, odd: int, difference: str) -> list[str]:
    """One rank plans a call in another way: what each hears of it."""
    changes, words = PLANNED_OTHERWISE[difference]
    count = 50_000 if difference == "segments" else 8
    for name, value in changes.items():
        if ring.rank == odd:
            setattr(ring._engine.planner, name, value)
    error = await error_of(ring.allreduce(np.ones(count)))
    assert isinstance(error, ringwide.CollectiveMismatch), error
    ours, theirs = words if ring.rank != odd else words[::-1]
    assert (error.other_rank == odd) == (ring.rank != odd)
    assert f"allreduce(mean, float64[{count}]) by" in error.ours
    assert ours in error.ours
    assert theirs in error.theirs
    return [error.ours, error.theirs]


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("difference", PLANNED_OTHERWISE)
async def test_any_difference_in_planning_is_a_mismatch_with_both_sides_named(difference: str, odd: int) -> None:
    async def act(ring: Ring) -> bool:
        told = await plans_otherwise(ring, odd, difference)
        return told[0] != told[1]

    settings = {"segment_bytes": 4096, "tree_bytes": "64KiB", "collective_timeout_seconds": SOON_SECONDS}
    assert await on_every_rank(3, act, **settings) == [True] * 3


@pytest.mark.parametrize("difference", PLANNED_OTHERWISE)
async def test_a_plan_outside_the_fingerprint_would_be_found(difference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: without the plan in it, the fingerprint is that of what was asked for."""
    monkeypatch.setattr(BucketPlan, "__str__", lambda part: "")
    with pytest.raises(AssertionError):
        await test_any_difference_in_planning_is_a_mismatch_with_both_sides_named(difference, 1)


async def test_a_default_that_one_rank_writes_out_is_no_difference() -> None:
    """Once it was: `RemoteProtocolError` at the first all-reduce of 512 KB."""

    async def act(ring: Ring) -> bool:
        return bool((await ring.allreduce(np.ones(128 * 1024, np.float32), "sum") == 2).all())

    written = {name: field.default for name, field in ringwide.RingConfig.model_fields.items()}
    assert await on_every_rank(2, act, each=[{}, written]) == [True, True]
