"""Messages between two ranks, over real connections."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

import ringwide
from local_ring import error_of, on_every_rank
from ringwide import Ring
from ringwide.protocol.p2p import P2P_LANE
from ringwide.tensors.arithmetic import DTYPES

LARGE = 64 * 1024 * 1024 // 4
"""Of float32: much more than all buffers between two ranks hold."""


def some(dtype: str, count: int = 1000) -> torch.Tensor:
    return (torch.arange(count) % 100).to(getattr(torch, dtype))


@pytest.mark.numbers
@pytest.mark.parametrize("settings", [{}, {"checksum": True}, {"codec": "lz4", "threshold_bytes": 4096}])
async def test_every_dtype_and_many_sizes_arrive_as_they_were(settings: dict[str, Any]) -> None:
    """No codec touches them: what leaves is as long as the tensor."""

    async def act(ring: Ring) -> None:
        for dtype in DTYPES:
            for count in (0, 1, 1000, 70_001):
                if ring.rank == 0:
                    await ring.send(some(dtype, count), to=1)
                else:
                    place = torch.zeros(count, dtype=getattr(torch, dtype))
                    assert await ring.receive(place, source=0) == 0
                    assert torch.equal(place, some(dtype, count))
        await ring.barrier()
        sent = sum(lane.bytes_sent for link in ring.statistics().links for lane in link.lanes if lane.index == P2P_LANE)
        raw = sum(some(dtype, 71_002).nbytes for dtype in DTYPES)
        assert ring.rank == 1 or sent > raw

    await on_every_rank(2, act, messages=True, segment_bytes=8192, **settings)


async def test_shapes_strides_and_kinds_of_arrays_may_differ() -> None:
    async def act(ring: Ring) -> None:
        if ring.rank == 0:
            await ring.send(torch.arange(12.0).reshape(3, 4).T, to=1)
            frozen = np.arange(12, dtype=np.float32)
            frozen.flags.writeable = False
            await ring.send(frozen, to=1)
        else:
            place = np.zeros((12, 2), np.float32)
            await ring.receive(place[:, 1], 0)
            assert place[:, 1].reshape(4, 3).tolist() == torch.arange(12.0).reshape(3, 4).T.tolist()
            assert not place[:, 0].any()
            tensor = torch.zeros(2, 6)
            await ring.receive(tensor, 0)
            assert tensor.reshape(-1).tolist() == list(range(12))

    await on_every_rank(2, act, messages=True)


async def test_two_large_messages_pass_each_other() -> None:
    async def act(ring: Ring) -> None:
        other, place = 1 - ring.rank, torch.zeros(LARGE)
        sent = asyncio.create_task(ring.send(torch.full((LARGE,), float(ring.rank)), to=other))
        assert await ring.receive(place, source=other) == other
        await sent
        assert bool((place == other).all())

    await on_every_rank(2, act, messages=True)


async def test_a_message_does_not_wait_for_a_collective_that_others_have_not_called() -> None:
    """Rank 0's all-reduce fills its bulk lane and stops there: rank 1 calls it only when it has the message."""

    async def act(ring: Ring) -> None:
        numbers = torch.full((LARGE,), float(ring.rank))
        if ring.rank == 0:
            reduced = asyncio.create_task(ring.allreduce(numbers, op="sum"))
            await asyncio.sleep(0)
            await ring.send(torch.ones(3_000_000), to=1)
            await reduced
        else:
            place = torch.zeros(3_000_000)
            await ring.receive(place)
            assert bool((place == 1).all())
            await ring.allreduce(numbers, op="sum")
        assert bool((numbers == 1).all())

    await on_every_rank(2, act, messages=True)


async def test_tags_may_be_received_in_any_order_and_one_tag_keeps_its_own() -> None:
    async def act(ring: Ring) -> list[float]:
        if ring.rank == 0:
            tags = [7, -1, 7, 2**63 - 1, -(2**63), 7]
            await asyncio.gather(*[ring.send(np.array([float(place)]), 1, tag) for place, tag in enumerate(tags)])
            return []
        received = []
        for tag in [-(2**63), 7, 2**63 - 1, 7, -1, 7]:
            place = np.zeros(1)
            await ring.receive(place, 0, tag)
            received.append(float(place[0]))
        return received

    assert (await on_every_rank(2, act, messages=True))[1] == [4, 0, 3, 2, 1, 5]


async def test_anybody_may_be_received_from() -> None:
    async def act(ring: Ring) -> None:
        if ring.rank:
            await ring.send(np.full(5, float(ring.rank)), to=0)
            return
        sources = []
        for _ in range(1, ring.size):
            place = np.zeros(5)
            source = await ring.receive(place)
            assert (place == source).all()
            sources.append(source)
        assert sorted(sources) == [1, 2, 3]

    await on_every_rank(4, act, messages=True)


async def test_a_rank_can_write_to_itself() -> None:
    async def act(ring: Ring) -> None:
        places = [np.zeros(3), np.zeros(3)]
        first = asyncio.create_task(ring.receive(places[0], tag=1))
        await ring.send(np.ones(3), to=ring.rank, tag=1)
        assert await first == ring.rank
        second = asyncio.create_task(ring.send(np.full(3, 2.0), to=ring.rank))
        assert await ring.receive(places[1], source=ring.rank) == ring.rank
        await second
        assert [place.tolist() for place in places] == [[1, 1, 1], [2, 2, 2]]
        lost = asyncio.create_task(ring.send(np.ones(3), to=ring.rank))
        assert isinstance(await error_of(ring.receive(np.ones(4), ring.rank)), ringwide.MessageMismatch)
        assert isinstance(await error_of(lost), ringwide.MessageMismatch)

    await on_every_rank(1, act, messages=True)
    await on_every_rank(2, act, messages=True)


@pytest.mark.parametrize("place", [np.full(4, -1.0), np.full(3, -1, np.int64)])
async def test_what_does_not_fit_is_an_error_of_both_and_the_ring_works_on(place: np.ndarray[Any, Any]) -> None:
    async def act(ring: Ring) -> str:
        expected = place.copy()
        call = ring.send(np.zeros(3), to=1, tag=4) if ring.rank == 0 else ring.receive(expected, tag=4)
        error = await error_of(call)
        assert isinstance(error, ringwide.MessageMismatch)
        assert (error.rank, error.other_rank, error.tag) == (ring.rank, 1 - ring.rank, 4)
        assert (expected == -1).all()
        again = np.zeros(3)
        await (ring.send(np.ones(3), to=1, tag=4) if ring.rank == 0 else ring.receive(again, tag=4))
        assert ring.rank == 0 or again.tolist() == [1, 1, 1]
        await ring.barrier()
        return str(error)

    one, other = await on_every_rank(2, act, messages=True)
    assert one == other
    assert one == (
        f"a message with tag 4: rank 0 sends float64[3], but rank 1 receives {place.dtype}[{place.size}]; "
        "both must have the same dtype and as many elements"
    )


async def test_without_the_setting_its_name_is_in_the_error() -> None:
    async def act(ring: Ring) -> None:
        for call in (ring.send(np.ones(1), 0), ring.receive(np.ones(1)), ring.exchange([None] * 2, [None] * 2)):
            error = await error_of(call)
            assert isinstance(error, ringwide.ConfigError)
            assert "messages=True" in str(error)

    await on_every_rank(2, act)


async def test_arguments_are_checked_before_anything_is_sent() -> None:
    async def act(ring: Ring) -> list[str]:
        frozen = np.ones(2)
        frozen.flags.writeable = False
        calls = [
            ring.send(np.ones(1), to=2),
            ring.receive(np.ones(1), source=-1),
            ring.send(np.ones(1), to=0, tag=2**63),
            ring.send("text", to=0),
            ring.receive(frozen),
            ring.exchange([None], [None, None]),
        ]
        return [str(await error_of(call)) for call in calls]

    for errors in await on_every_rank(2, act, messages=True):
        to, source, tag, text, read_only, places = errors
        assert to == "to 2 is not a rank of this ring: ranks go from 0 to 1"
        assert source == "source -1 is not a rank of this ring: ranks go from 0 to 1"
        assert tag == "tag 9223372036854775808 is not an integer of 64 bits"
        assert "a str" in text
        assert "read-only" in read_only
        assert places == "outgoing has 1 places, and there are 2 ranks: each needs one"


# -- giving up


async def cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    assert isinstance(await error_of(task), asyncio.CancelledError)


async def test_an_offer_that_nobody_has_accepted_disappears_with_its_sender() -> None:
    async def act(ring: Ring) -> None:
        if ring.rank == 0:
            task = asyncio.create_task(ring.send(np.zeros(3), to=1))
            await asyncio.sleep(0)
            await cancelled(task)
            await ring.send(np.zeros(1), to=1, tag=1)  # what comes on a lane later is heard later
            await ring.send(np.ones(4), to=1)
        else:
            await ring.receive(np.zeros(1), tag=1)
            place = np.zeros(4)
            await ring.receive(place)
            assert place.tolist() == [1] * 4

    await on_every_rank(2, act, messages=True)


async def test_a_receive_that_is_cancelled_takes_nothing() -> None:
    async def act(ring: Ring) -> None:
        if ring.rank == 0:
            task = asyncio.create_task(ring.receive(np.zeros(9)))
            await asyncio.sleep(0)
            await cancelled(task)
            place = np.zeros(3)
            await ring.barrier()
            await ring.receive(place, source=1)
            assert place.tolist() == [1] * 3
        else:
            await ring.barrier()
            await ring.send(np.ones(3), to=0)

    await on_every_rank(2, act, messages=True)


@pytest.mark.parametrize("who", ["sender", "receiver"])
async def test_who_gives_up_in_the_middle_is_named_to_the_other(who: str) -> None:
    """Both go on with other messages at once, in both directions, and what was on its way troubles nobody."""

    async def act(ring: Ring) -> None:
        sends = ring.rank == 0
        place = torch.full((LARGE,), -1.0)
        call = ring.send(torch.zeros(LARGE), to=1) if sends else ring.receive(place)
        task = asyncio.create_task(call)
        if (who == "sender") == sends:
            await until_under_way(ring)
            await cancelled(task)
        else:
            error = await error_of(task)
            assert isinstance(error, ringwide.CollectiveAborted)
            assert error.by == 1 - ring.rank
            assert "its task was cancelled" in str(error)
        assert bool((place == -1).all())
        back = torch.zeros(1_000_000)
        if sends:
            await ring.send(torch.ones(1_000_000), to=1)
            await ring.receive(back, 1)
        else:
            await ring.receive(back, 0)
            await ring.send(back, to=0)
        assert bool((back == 1).all())
        await ring.barrier()

    await on_every_rank(2, act, messages=True)


async def until_under_way(ring: Ring) -> None:
    """Megabytes of a message have passed, and most of it has not."""
    while p2p_bytes(ring) < 1_000_000:  # noqa: ASYNC110 (bytes have no event)
        await asyncio.sleep(0)


def p2p_bytes(ring: Ring) -> int:
    lanes = [lane for link in ring.statistics().links for lane in link.lanes if lane.index == P2P_LANE]
    return sum(lane.bytes_sent + lane.bytes_received for lane in lanes)
