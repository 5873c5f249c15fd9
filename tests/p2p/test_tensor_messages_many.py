"""Thousands of messages at once, over real connections: the one that is wanted arrives, however many wait before it."""

import asyncio
import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import ringwide.runtime.core
from local_ring import on_every_rank
from ringwide import Ring
from ringwide.p2p.endpoint import Endpoint
from ringwide.protocol.p2p import KEPT_LIMIT_BYTES

MANY = 5000
ROOMS = pytest.mark.parametrize("room", [100_000, KEPT_LIMIT_BYTES], ids=["held", "kept"])
"""At the other end: for about sixty offers, or for more than there are."""
Tags = list[int]


@pytest.fixture(autouse=True)
def keep(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    endpoint = partial(Endpoint, kept_limit_bytes=room)
    monkeypatch.setattr(ringwide.runtime.core, "Endpoint", endpoint)


def in_reverse(tags: Tags) -> Tags:
    return tags[::-1]


def at_random(tags: Tags) -> Tags:
    return random.Random(14).sample(tags, len(tags))


ORDERS = pytest.mark.parametrize("order", [in_reverse, at_random])


def numbers(source: int, tag: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """One of a hundred has many segments, the others have a few bytes."""
    return np.full(20_000 if tag % 100 == 50 else 3, source << 32 | tag)


async def send_all(ring: Ring, to: int, tags: Tags) -> None:
    async with asyncio.TaskGroup() as group:
        for tag in tags:
            group.create_task(ring.send(numbers(ring.rank, tag), to, tag))


async def receive(ring: Ring, source: int | None, tag: int) -> int:
    place = np.zeros_like(numbers(0, tag))
    sender = await ring.receive(place, source, tag)
    assert (place == numbers(sender, tag)).all()
    return sender


@ROOMS
@ORDERS
async def test_sends_with_tags_of_their_own_are_received_in_any_order(order: Callable[[Tags], Tags]) -> None:
    """One receive after the other: nothing moves but what it waits for."""

    async def act(ring: Ring) -> None:
        tags = list(range(MANY))
        if ring.rank == 0:
            await send_all(ring, 1, tags)
            return
        for tag in order(tags):
            assert await receive(ring, 0, tag) == 0

    await on_every_rank(2, act, messages=True, segment_bytes=8192)


@ROOMS
async def test_from_anybody_all_arrive_that_several_ranks_send() -> None:
    """Who is asked for a message and comes too late has it back, and it is received by the next that asks."""

    async def act(ring: Ring) -> None:
        tags = list(range(MANY // 5))
        if ring.rank:
            await send_all(ring, 0, tags)
            return
        for tag in in_reverse(tags):
            assert sorted([await receive(ring, None, tag) for _ in range(3)]) == [1, 2, 3]

    await on_every_rank(4, act, messages=True, segment_bytes=8192)


@ROOMS
async def test_sends_and_receives_that_are_all_under_way_meet() -> None:
    """Both ways at once, and while all of them wait an exchange goes through."""

    async def act(ring: Ring) -> None:
        tags, other = list(range(MANY // 2)), 1 - ring.rank
        sends = asyncio.create_task(send_all(ring, other, tags))
        ours, theirs = [np.full(3, ring.rank)] * 2, [np.zeros(3, int), np.zeros(3, int)]
        await ring.exchange(ours, theirs)
        assert [place.tolist() for place in theirs] == [[0] * 3, [1] * 3]
        async with asyncio.TaskGroup() as group:
            for tag in at_random(tags):
                group.create_task(receive(ring, other, tag))
        await sends

    await on_every_rank(2, act, messages=True, segment_bytes=8192)
