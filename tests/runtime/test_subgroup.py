"""Subgroups over the connections of a ring."""

import asyncio
import os
import random
import threading
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest

from local_ring import Everyone, error_of, on_every_rank
from ringwide import CollectiveAborted, CollectiveMismatch, CollectiveTimeout, PeerLeft, PeerLost, Ring, RingClosed
from ringwide.protocol.frame import pack_data
from ringwide.ring import join_subgroup

SMALL, LARGE = 10, 700_000
"""Elements: one frame on the express lanes, and several segments on the bulk lanes."""


def numbers(rank: int, size: int = SMALL) -> Any:
    return np.arange(size, dtype=np.float64) + rank


def total(ranks: Sequence[int], size: int = SMALL) -> Any:
    return np.sum([numbers(rank, size) for rank in ranks], axis=0)


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("same_host", ["auto", "tcp"])
async def test_a_subgroup_reduces_what_its_own_ranks_bring(size: int, same_host: str) -> None:
    """Also ranks that are no neighbours in the ring, in an order of their own."""

    async def act(ring: Ring) -> None:
        for epoch, ranks in enumerate([[0, 2], [3, 1], [2, 0, 3], [1], [3, 2, 1, 0]], start=1):
            if ring.rank in ranks:
                async with join_subgroup(ring, ranks, epoch=epoch) as group:
                    assert (group.rank, group.size) == (ranks.index(ring.rank), len(ranks))
                    reduced = await group.allreduce(numbers(ring.rank, size), "sum")
                    np.testing.assert_array_equal(reduced, total(ranks, size))
                    gathered = await group.all_gather(np.array([ring.rank]))
                    assert [int(part[0]) for part in gathered] == ranks
            whole = await ring.allreduce(numbers(ring.rank, size), "sum")
            np.testing.assert_array_equal(whole, total(range(4), size))

    await on_every_rank(4, act, same_host=same_host)


@pytest.mark.parametrize("same_host", ["auto", "tcp"])
async def test_subgroups_that_need_the_same_new_lanes_may_be_made_at_once(same_host: str) -> None:
    async def one_group(ring: Ring, ranks: list[int], epoch: int) -> None:
        async with join_subgroup(ring, ranks, epoch=epoch) as group:
            np.testing.assert_array_equal(await group.allreduce(numbers(ring.rank, LARGE), "sum"), total(ranks, LARGE))

    async def act(ring: Ring) -> None:
        if ring.rank in (0, 2):  # no neighbours
            groups = enumerate([[0, 2], [2, 0], [0, 2]], start=1)
            await asyncio.gather(*(one_group(ring, ranks, epoch) for epoch, ranks in groups))
        await ring.barrier()

    await on_every_rank(5, act, lanes=2, same_host=same_host)


async def test_messages_of_subgroups_with_the_same_numbers_are_told_apart() -> None:
    async def act(ring: Ring) -> None:
        async with join_subgroup(ring, [2, 0], epoch=5) if ring.rank != 1 else _nothing() as group:
            for hop in range(3):
                for one, number in ((ring, 100), *(((group, 200),) if group is not None else ())):
                    left, right = (one.rank - 1) % one.size, (one.rank + 1) % one.size
                    sent = one.send(np.full(LARGE, number + one.rank + hop), right)
                    expected = np.zeros(LARGE, np.int64)
                    assert await one.receive(expected, left) == left
                    assert set(expected) == {number + left + hop}
                    await sent

    await on_every_rank(3, act, messages=True)


class _nothing:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("seed", range(6))
async def test_calls_of_a_ring_and_its_subgroups_may_be_made_in_any_order(seed: int) -> None:
    """Each rank makes the calls of each group in order, and of different groups in an order of its own."""
    groups = [[0, 1, 2], [0, 2], [1, 2], [2, 1, 0]]
    rounds = 8

    async def act(ring: Ring) -> None:
        async with (
            _member(ring, groups[1], 1) as pair,
            _member(ring, groups[2], 2) as other,
            _member(ring, groups[3], 3) as reversed_,
        ):
            members = [(ranks, one) for ranks, one in zip(groups, (ring, pair, other, reversed_), strict=True) if one]
            draw = random.Random(f"{seed} {ring.rank}")
            due = [(ranks, one) for ranks, one in members for _ in range(rounds)]
            draw.shuffle(due)
            turns = {id(one): count() for _, one in members}
            calls = []
            for ranks, one in due:
                size = LARGE if (next(turns[id(one)]) + seed) % 3 else SMALL
                calls.append((ranks, size, one.allreduce(numbers(ring.rank, size), "sum")))
            for ranks, size, call in calls:
                np.testing.assert_array_equal(await call, total(ranks, size))

    await on_every_rank(3, act, patience=60)


def _member(ring: Ring, ranks: list[int], epoch: int) -> Any:
    return join_subgroup(ring, ranks, epoch=epoch) if ring.rank in ranks else _nothing()


async def test_what_one_group_disagrees_on_or_gives_up_does_not_touch_others() -> None:
    async def act(ring: Ring) -> None:
        async with join_subgroup(ring, [1, 0], epoch=1) as group, join_subgroup(ring, [0, 1], epoch=2) as other:
            error = await error_of(group.allreduce(numbers(0, 3 + group.rank), "sum"))
            assert isinstance(error, CollectiveMismatch)
            going_on = [
                ring.allreduce(numbers(ring.rank, LARGE), "sum"),
                other.allreduce(numbers(ring.rank, LARGE), "sum"),
            ]
            if ring.rank:
                error = await error_of(group.allreduce(numbers(0, LARGE), "sum"))
                assert isinstance(error, CollectiveAborted)
            else:
                given_up = asyncio.create_task(_awaited(group.allreduce(numbers(0, LARGE), "sum")))
                await asyncio.sleep(0)
                given_up.cancel()
                await error_of(given_up)
            for call in going_on:
                np.testing.assert_array_equal(await call, total([0, 1], LARGE))
            np.testing.assert_array_equal(await group.allreduce(numbers(ring.rank), "sum"), total([0, 1]))

    await on_every_rank(2, act)


async def _awaited(call: Any) -> Any:
    return await call


async def test_a_rank_that_leaves_a_subgroup_is_still_in_the_ring() -> None:
    here = Everyone(3)

    async def act(ring: Ring) -> None:
        async with join_subgroup(ring, [0, 1, 2], epoch=1) as group:
            await group.barrier()
            if ring.rank != 1:
                error = await error_of(group.allreduce(numbers(0), "sum"))
                assert isinstance(error, PeerLeft)
                assert "rank 1" in str(error)
        np.testing.assert_array_equal(await ring.allreduce(numbers(ring.rank), "sum"), total([0, 1, 2]))
        assert isinstance(await error_of(group.barrier()), RingClosed)
        await here.wait()

    await on_every_rank(3, act)


async def test_a_message_under_way_ends_when_its_sender_leaves_the_subgroup() -> None:
    async def act(ring: Ring) -> None:
        async with join_subgroup(ring, [0, 1], epoch=1) as group:
            if ring.rank:
                error = await error_of(group.receive(np.zeros(LARGE), 0, tag=3))
                assert isinstance(error, PeerLeft)

    await on_every_rank(2, act, messages=True)


async def test_a_rank_that_leaves_the_ring_leaves_its_subgroups() -> None:
    async def act(ring: Ring) -> None:
        if ring.rank == 1:
            membership = join_subgroup(ring, [0, 1], epoch=1)
            await membership.__aenter__()
            return
        if ring.rank == 0:
            async with join_subgroup(ring, [0, 1], epoch=1) as group:
                error = await error_of(group.allreduce(numbers(0), "sum"))
                assert isinstance(error, PeerLeft)

    await on_every_rank(3, act, stay=False)


async def test_a_subgroup_outlives_the_loss_of_a_rank_that_is_not_in_it() -> None:
    lost = asyncio.Event()

    async def act(ring: Ring) -> None:
        if ring.rank == 2:
            await ring.barrier()
            for link in ring._engine.links.values():
                for lane in link.lanes.values():
                    lane.reset()
            lost.set()
            return
        async with join_subgroup(ring, [0, 1], epoch=1) as group:
            await ring.barrier()
            assert isinstance(await error_of(ring.allreduce(numbers(0), "sum")), PeerLost)
            await lost.wait()
            np.testing.assert_array_equal(await group.allreduce(numbers(ring.rank, LARGE), "sum"), total([0, 1], LARGE))

    await on_every_rank(3, act, stay=False, suspect_after_seconds=1.0)


async def test_the_loss_of_a_member_ends_the_subgroup_with_its_rank_there() -> None:
    async def act(ring: Ring) -> None:
        if ring.rank == 1:
            return
        async with join_subgroup(ring, [2, 0], epoch=1) as group:
            await group.barrier()
            if ring.rank == 2:
                for link in ring._engine.links.values():
                    for lane in link.lanes.values():
                        lane.reset()
                return
            error = await error_of(group.allreduce(numbers(0), "sum"))
            assert isinstance(error, PeerLost)
            assert error.rank == 0, error

    await on_every_rank(3, act, stay=False, suspect_after_seconds=1.0)


async def test_a_collective_of_a_subgroup_that_a_rank_never_calls_times_out() -> None:
    everyone = Everyone(2)

    async def act(ring: Ring) -> None:
        config = ring.config.model_copy(update={"collective_timeout_seconds": 0.3})
        async with join_subgroup(ring, [0, 1], epoch=1, config=config) as group:
            if ring.rank == 0:
                error = await error_of(group.allreduce(numbers(0, LARGE), "sum"))
                assert isinstance(error, CollectiveTimeout)
                assert error.waiting_for == (1,)
            await everyone.wait()

    await on_every_rank(2, act, collective_timeout_seconds=50)


async def test_a_hundred_subgroups_share_connections_and_threads() -> None:
    """The first two open lanes to new neighbours; the others add nothing."""
    used: list[int] = []

    async def act(ring: Ring) -> None:
        epochs = count(1)
        memberships = []
        for number in range(101):
            membership = join_subgroup(ring, [[0, 2, 1, 3], [3, 1, 2, 0]][number % 2], epoch=next(epochs))
            group = await membership.__aenter__()
            await group.allreduce(numbers(0, LARGE if number < 2 else SMALL), "sum")
            await ring.barrier()
            if number == 1 and ring.rank == 0:
                used.extend([len(os.listdir("/proc/self/fd")), threading.active_count()])
            memberships.append(membership)
        await ring.barrier()
        if ring.rank == 0:
            assert len(os.listdir("/proc/self/fd")) <= used[0]
            assert threading.active_count() <= used[1]
        await ring.barrier()
        for membership in memberships:
            await membership.__aexit__(None, None, None)

    await on_every_rank(4, act)


async def test_frames_of_a_subgroup_that_nobody_knows_are_refused_before_they_cost_much() -> None:
    async def act(ring: Ring) -> None:
        if ring.rank == 0:
            payload = memoryview(bytes(200_000))
            for number in range(40):
                header = pack_data(
                    bucket=0,
                    hop=1,
                    epoch=77 + number,
                    segment=0,
                    collective=1,
                    fingerprint=5,
                    payload_bytes=len(payload),
                )
                ring._engine.links[1].send_express(header, payload)
            await asyncio.wait([asyncio.ensure_future(_awaited(ring.allreduce(numbers(0), "sum")))])
            return
        assert "which is none of its groups" in str(await error_of(ring.allreduce(numbers(0), "sum")))

    await on_every_rank(2, act, stay=False)
