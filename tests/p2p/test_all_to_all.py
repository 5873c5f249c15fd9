"""Exchanges: every rank has something else for every other, and all of it arrives or nothing is touched."""

import asyncio
import random
from typing import Any

import numpy as np
import pytest
import torch

import ringwide
from local_ring import Everyone, error_of, on_every_rank
from ringwide import Ring
from ringwide.collectives.plan import EXPRESS_BYTES
from ringwide.protocol.frame import DATA
from ringwide.tensors.arithmetic import DTYPES

LARGE = 4_000_000
CANCELLED = asyncio.CancelledError()


def parcel(sender: int, receiver: int, count: int, dtype: str = "int32") -> torch.Tensor:
    return (torch.arange(count) % 7 + 10 * sender + receiver).to(getattr(torch, dtype))


@pytest.mark.numbers
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
async def test_uneven_parts_of_every_dtype_arrive_where_they_belong(size: int, seed: int) -> None:
    chance = random.Random(100 * size + seed)
    pairs = [(a, b) for a in range(size) for b in range(size)]
    counts = {pair: chance.choice([0, 0, 1, 5, 1000, 50_000]) for pair in pairs}
    dtypes = {pair: chance.choice(DTYPES) for pair in pairs}

    async def act(ring: Ring) -> None:
        me, everybody = ring.rank, range(ring.size)
        outgoing = [parcel(me, to, counts[me, to], dtypes[me, to]) for to in everybody]
        incoming: list[Any] = [torch.zeros(counts[of, me], dtype=getattr(torch, dtypes[of, me])) for of in everybody]
        if seed == 1:  # nothing may be None
            outgoing = [part if len(part) else None for part in outgoing]  # type: ignore[misc]
        for _ in range(2):
            await ring.exchange(outgoing, incoming, "parts")
        for of in everybody:
            assert torch.equal(incoming[of], parcel(of, me, counts[of, me], dtypes[of, me]))

    await on_every_rank(size, act, messages=True, segment_bytes=16384)


async def test_many_exchanges_at_once_do_not_mix_and_messages_do_not_meet_them() -> None:
    async def act(ring: Ring) -> None:
        other = 1 - ring.rank
        places = [[np.zeros(3), np.zeros(3)] for _ in range(20)]
        stranger = asyncio.create_task(ring.receive(np.zeros(3)))
        await asyncio.gather(
            *[ring.exchange([np.full(3, 10.0 * ring.rank + n)] * 2, place) for n, place in enumerate(places)]
        )
        assert [[part[0] for part in place] for place in places] == [[n, 10.0 + n] for n in range(20)]
        assert not stranger.done()
        await asyncio.gather(ring.send(np.ones(3), other), stranger)

    await on_every_rank(2, act, messages=True)


async def test_large_parts_pass_each_other_and_may_lie_in_the_same_memory() -> None:
    async def act(ring: Ring) -> None:
        memory = torch.stack([parcel(ring.rank, to, LARGE) for to in range(ring.size)])
        parts = list(memory)
        await ring.exchange(parts, parts)
        assert torch.equal(memory, torch.stack([parcel(of, ring.rank, LARGE) for of in range(ring.size)]))

    await on_every_rank(3, act, messages=True)


@pytest.mark.parametrize("size", [2, 3])
async def test_what_is_sent_and_not_expected_is_a_mismatch_on_all(size: int) -> None:
    async def act(ring: Ring) -> str:
        outgoing = [np.ones(4, np.float32)] * ring.size
        incoming = [np.full(4, -1, np.float32) for _ in range(ring.size)]
        if ring.rank == 1:
            incoming[0] = np.full(4, -1, np.int64)
        error = await error_of(ring.exchange(outgoing, incoming, "all_to_all"))
        assert isinstance(error, ringwide.CollectiveMismatch)
        assert (error.rank, error.other_rank) == (0, 1)
        assert all((part == -1).all() for part in incoming)
        await ring.exchange([np.ones(2)] * ring.size, [np.zeros(2) for _ in range(ring.size)])
        return f"{error.ours}; {error.theirs}"

    assert set(await on_every_rank(size, act, messages=True)) == {
        "exchange(all_to_all) with 16 bytes of float32 for rank 1; "
        "exchange(all_to_all) with room for 32 bytes of int64 from rank 0"
    }


async def test_one_that_is_called_something_else_is_a_mismatch() -> None:
    async def act(ring: Ring) -> None:
        nothing = [None] * ring.size
        error = await error_of(ring.exchange(nothing, nothing, f"number {ring.rank}"))
        assert isinstance(error, ringwide.CollectiveMismatch)
        assert error.ours == f"exchange(number {ring.rank})"
        error = await error_of(ring.barrier() if ring.rank else ring.exchange(nothing, nothing, "gather"))
        assert isinstance(error, ringwide.CollectiveMismatch)
        await ring.exchange(nothing, nothing)

    await on_every_rank(2, act, messages=True)


async def test_tables_of_many_ranks_are_too_large_for_the_express_lane_and_do_as_well() -> None:
    async def act(ring: Ring) -> None:
        ring._engine.planner._express_bytes = 32
        places = [np.zeros(1) for _ in range(ring.size)]
        await ring.exchange([np.full(1, float(ring.rank))] * ring.size, places)
        assert [float(place[0]) for place in places] == [0, 1, 2]

    assert EXPRESS_BYTES > 32
    await on_every_rank(3, act, messages=True)


# -- giving up


async def test_a_rank_that_is_cancelled_in_the_middle_is_named_to_the_others() -> None:
    async def act(ring: Ring) -> None:
        incoming = [torch.full((LARGE,), -1, dtype=torch.int32) for _ in range(ring.size)]
        task = asyncio.create_task(
            ring.exchange([parcel(ring.rank, to, LARGE) for to in range(ring.size)], incoming, "parts")
        )
        if ring.rank == 1:
            while not ring._engine._core.endpoint.waits:  # noqa: ASYNC110
                await asyncio.sleep(0)
            task.cancel()
            assert isinstance(await error_of(task), asyncio.CancelledError)
        else:
            error = await error_of(task)
            assert isinstance(error, ringwide.CollectiveAborted)
            assert error.by == 1
            assert "exchange(parts): rank 1 gave up: its task was cancelled" in str(error)
        assert all(bool((part == -1).all()) for part in incoming)
        await ring.barrier()
        await ring.exchange([parcel(ring.rank, to, LARGE) for to in range(ring.size)], incoming)
        assert torch.equal(incoming[0], parcel(0, ring.rank, LARGE))
        assert not ring._engine._core.endpoint.waits

    await on_every_rank(3, act, messages=True)


async def test_who_hears_that_another_gave_up_passes_it_on() -> None:
    """Before it withdraws its own messages: else those that hear of it first would name the wrong rank."""

    async def act(ring: Ring) -> None:
        endpoint, exchanges = ring._engine._core.endpoint, ring._engine.all_to_alls
        incoming = [np.full(LARGE, -1.0) for _ in range(ring.size)]
        task = asyncio.create_task(ring.exchange([np.ones(LARGE)] * ring.size, incoming))
        if ring.rank == 0:
            while not endpoint.waits:  # noqa: ASYNC110
                await asyncio.sleep(0)
            exchanges.on_given_up(1, next(iter(exchanges._open)), "2 it is tired")
        error = await error_of(task)
        assert isinstance(error, ringwide.CollectiveAborted)
        assert (error.by, error.reason) == (2, "it is tired")
        await ring.barrier()

    await on_every_rank(3, act, messages=True)


async def test_one_that_gives_up_before_another_has_compared_is_heard_all_the_same() -> None:
    """Rank 2 does not know yet what rank 0 sends: what rank 1 says meanwhile is kept for it."""
    gave_up, both = Everyone(2), Everyone(2)

    async def act(ring: Ring) -> None:
        incoming = [np.full(5, -1.0) for _ in range(ring.size)]
        dispatcher, exchanges = ring._engine.dispatcher, ring._engine.all_to_alls
        arrived, held = dispatcher.arrived, []

        def hold(lane: Any, header: Any, payload: memoryview) -> None:
            if header.kind == DATA and lane.peer == 0:
                held.append((lane, header, bytes(payload)))
            else:
                arrived(lane, header, payload)

        async def let_go() -> None:
            await gave_up.wait()
            while not exchanges._given_up:  # noqa: ASYNC110
                await asyncio.sleep(0)
            dispatcher.arrived = arrived
            for lane, header, payload in held:
                arrived(lane, header, memoryview(payload))

        if ring.rank == 2:
            dispatcher.arrived = hold
            releasing = asyncio.create_task(let_go())
        task = asyncio.create_task(ring.exchange([np.ones(5)] * ring.size, incoming))
        if ring.rank == 1:
            while not ring._engine._core.endpoint.waits:  # noqa: ASYNC110
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await gave_up.wait()
        else:
            error = await error_of(task)
            assert isinstance(error, ringwide.CollectiveAborted)
            assert error.by == 1
            await both.wait()
        if ring.rank == 2:
            await releasing
        await ring.barrier()
        assert not exchanges._open
        assert all((part == -1).all() for part in incoming)

    await on_every_rank(3, act, messages=True)


@pytest.mark.parametrize("size", [2, 3])
async def test_one_that_gives_up_before_it_has_compared_is_heard_by_those_that_have(size: int) -> None:
    """Whenever it is: nobody who knows what all send waits for a rank that has changed its mind meanwhile."""
    outcomes = set()
    for steps in range(25):

        async def act(ring: Ring, steps: int = steps) -> str:
            incoming = [np.full(5, -1.0) for _ in range(ring.size)]
            task = asyncio.create_task(ring.exchange([np.ones(5)] * ring.size, incoming))
            if ring.rank == 1:
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait([task])
            error = CANCELLED if task.cancelled() else task.exception()
            assert all((part == (1 if error is None else -1)).all() for part in incoming)
            if ring.rank != 1 and error is not None:
                assert isinstance(error, ringwide.CollectiveAborted)
                assert error.by == 1
            await ring.barrier()
            assert not ring._engine._core.endpoint.waits
            return type(error).__name__

        outcomes.add(tuple(await on_every_rank(size, act, messages=True, linger_seconds=0.0)))
    assert any(names[0] == "CollectiveAborted" for names in outcomes)


async def test_a_rank_without_memory_is_named_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(ring: Ring) -> None:
        incoming = [np.full(5, -1.0) for _ in range(ring.size)]

        def take(count: int, dtype: Any) -> Any:
            raise MemoryError("none left")

        with monkeypatch.context() as patched:
            if ring.rank == 1:
                patched.setattr(ring._engine.pool, "take", take)
            error = await error_of(ring.exchange([np.ones(5)] * ring.size, incoming))
        assert isinstance(error, MemoryError if ring.rank == 1 else ringwide.CollectiveAborted)
        assert ring.rank == 1 or "none left" in str(error)
        assert all((part == -1).all() for part in incoming)
        await ring.exchange([np.ones(5)] * ring.size, incoming)

    await on_every_rank(3, act, messages=True)


async def test_a_rank_that_leaves_when_its_part_is_done_takes_nothing_along() -> None:
    async def act(ring: Ring) -> None:
        incoming = [torch.zeros(LARGE, dtype=torch.int32) for _ in range(ring.size)]
        await ring.exchange([parcel(ring.rank, to, LARGE) for to in range(ring.size)], incoming)
        assert all(torch.equal(incoming[of], parcel(of, ring.rank, LARGE)) for of in range(ring.size))

    await on_every_rank(3, act, messages=True, stay=False)
