"""Results that are written where the caller says, to one rank only, or bit by bit."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

import ringwide
from local_ring import error_of, on_every_rank
from ringwide import Ring
from ringwide.tensors.arithmetic import BITWISE, DTYPES, FLOATS, INTEGERS

SMALL, LARGE = 7, 300_001

pytestmark = pytest.mark.numbers


def numbers_of(rank: int, count: int, dtype: str = "float32") -> torch.Tensor:
    return (torch.arange(count) % 5 + 10 * rank).to(getattr(torch, dtype))


@pytest.mark.parametrize("count", [0, SMALL, LARGE])
async def test_everything_is_gathered_where_the_caller_says(count: int) -> None:
    async def act(ring: Ring) -> bool:
        into = torch.full((ring.size, count), -1.0)
        answer = await ring.all_gather(numbers_of(ring.rank, count), into=into)
        expected = torch.stack([numbers_of(rank, count) for rank in range(ring.size)])
        return answer is into and torch.equal(into, expected)

    assert all(await on_every_rank(3, act))


@pytest.mark.parametrize("dtype", DTYPES)
async def test_every_dtype_is_gathered_into(dtype: str) -> None:
    async def act(ring: Ring) -> bool:
        into = torch.zeros(ring.size * SMALL, dtype=getattr(torch, dtype))
        await ring.all_gather(numbers_of(ring.rank, SMALL, dtype), into=into)
        return torch.equal(into, torch.cat([numbers_of(rank, SMALL, dtype) for rank in range(ring.size)]))

    assert all(await on_every_rank(2, act))


async def test_what_does_not_lie_flat_is_filled_too_and_what_is_already_there_is_left() -> None:
    async def act(ring: Ring) -> bool:
        expected = torch.cat([numbers_of(rank, SMALL) for rank in range(ring.size)])
        strided = torch.zeros(ring.size * SMALL, 2)[:, 0]
        await ring.all_gather(numbers_of(ring.rank, SMALL), into=strided)
        flat = torch.zeros(ring.size, SMALL)
        flat[ring.rank] = numbers_of(ring.rank, SMALL)
        await ring.all_gather(flat[ring.rank], into=flat)
        return torch.equal(strided, expected) and torch.equal(flat.reshape(-1), expected)

    assert all(await on_every_rank(3, act))


@pytest.mark.parametrize("count", [SMALL, LARGE])
async def test_a_gather_that_fails_leaves_everything_as_it_was(count: int) -> None:
    """Rank 2 brings one more than the others: what had come into their memory by then is out of it again."""

    async def act(ring: Ring) -> bool:
        into = torch.full((ring.size * count,), float(-1 - ring.rank))
        wrong = ring.rank == 2
        error = await error_of(ring.all_gather(numbers_of(ring.rank, count + wrong), into=None if wrong else into))
        await ring.barrier()
        return isinstance(error, ringwide.CollectiveMismatch) and bool((into == -1 - ring.rank).all())

    assert all(await on_every_rank(3, act))


async def test_one_that_is_cancelled_finds_everything_as_it_was() -> None:
    async def act(ring: Ring) -> bool:
        into = torch.full((ring.size * LARGE,), -1.0)
        if ring.rank == 2:
            call = asyncio.ensure_future(ring.all_gather(numbers_of(ring.rank, LARGE), into=into))
            await asyncio.sleep(0)
            assert (into[2 * LARGE :] == numbers_of(2, LARGE)).all()  # what it brings is there already
            call.cancel()
            assert isinstance(await error_of(call), asyncio.CancelledError)
        else:
            await asyncio.wait([asyncio.ensure_future(ring.all_gather(numbers_of(ring.rank, LARGE)))])
        await ring.barrier()
        return bool((into == -1).all())

    assert all(await on_every_rank(3, act))


async def test_after_the_ring_was_left_nothing_is_written() -> None:
    rings: list[Ring] = []

    async def act(ring: Ring) -> None:
        rings.append(ring)

    await on_every_rank(2, act)
    into = np.full(2 * SMALL, -1.0)
    assert isinstance(await error_of(rings[0].all_gather(np.ones(SMALL), into=into)), ringwide.RingClosed)
    assert (into == -1).all()


@pytest.mark.parametrize("count", [1, SMALL, LARGE])
async def test_a_share_is_written_where_the_caller_says(count: int) -> None:
    async def act(ring: Ring) -> bool:
        share = slice(count * ring.rank // ring.size, count * (ring.rank + 1) // ring.size)
        into = np.full(share.stop - share.start, -1.0)
        brought = np.arange(count, dtype=np.float64) * (1 + ring.rank)
        answer = await ring.reduce_scatter(brought, op="sum", into=into)
        return answer is into and bool((into == np.arange(count)[share] * 6).all())

    assert all(await on_every_rank(3, act))


@pytest.mark.parametrize("dtype", DTYPES)
async def test_every_dtype_is_scattered_into(dtype: str) -> None:
    async def act(ring: Ring) -> list[float]:
        into = torch.zeros(2, dtype=getattr(torch, dtype))
        await ring.reduce_scatter(numbers_of(ring.rank, 4, dtype), op="max", into=into)
        return [float(value) for value in into]

    assert await on_every_rank(2, act) == [[10, 11], [12, 13]]


async def test_room_that_does_not_fit_is_refused_before_anybody_waits() -> None:
    async def act(ring: Ring) -> list[str]:
        frozen = np.zeros(8)
        frozen.flags.writeable = False
        calls = [
            ring.all_gather(np.zeros(4), into=np.zeros(7)),
            ring.all_gather(np.zeros(4), into=np.zeros(8, np.float32)),
            ring.all_gather(np.zeros(4), into=frozen),
            ring.reduce_scatter(np.zeros(4), into=np.zeros(3)),
        ]
        errors = [str(await error_of(call)) for call in calls]
        await ring.barrier()
        return errors

    for seven, single, read_only, three in await on_every_rank(2, act):
        assert seven == "into is float64[7], 7 elements; for what 2 ranks bring it must have 8 of float64"
        assert "must have 8 of float64" in single
        assert "read-only" in read_only
        assert "the share of rank" in three
        assert "must have 2 of float64" in three


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("root", [0, 2])
async def test_only_the_root_gets_what_is_reduced(root: int, count: int) -> None:
    async def act(ring: Ring) -> bool:
        ours: dict[str, Any] = {"a": np.full(count, float(ring.rank)), "b": np.full(3, ring.rank, np.int32)}
        answer = await ring.reduce(ours, root=root, op="sum")
        a, b = (3, 3) if ring.rank == root else (ring.rank, ring.rank)
        return answer is ours and bool((ours["a"] == a).all() and (ours["b"] == b).all())

    assert all(await on_every_rank(3, act))


async def test_a_root_that_differs_is_a_mismatch_and_one_that_is_no_rank_an_error() -> None:
    async def act(ring: Ring) -> list[str]:
        nobody = await error_of(ring.reduce(np.ones(2), root=2))
        other = await error_of(ring.reduce(np.ones(2), root=ring.rank))
        assert isinstance(other, ringwide.CollectiveMismatch)
        return [str(nobody), other.ours]

    assert await on_every_rank(2, act) == [
        ["root 2 is not a rank of this ring: ranks go from 0 to 1", f"reduce(mean, root {rank}, float64[2])"]
        for rank in range(2)
    ]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", BITWISE)
async def test_bits_are_combined(op: str, dtype: str) -> None:
    async def act(ring: Ring) -> bool:
        brought = [(np.arange(LARGE) * (3 + 2 * rank) % 100).astype(dtype) for rank in range(ring.size)]
        expected = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}[op].reduce(brought)
        small = await ring.allreduce(brought[ring.rank][:SMALL].copy(), op=op)
        large = await ring.allreduce(brought[ring.rank].copy(), op=op)
        return bool((small == expected[:SMALL]).all() and (large == expected).all())

    assert all(await on_every_rank(3, act))


@pytest.mark.parametrize("dtype", FLOATS)
async def test_floats_have_no_bits_to_combine(dtype: str) -> None:
    async def act(ring: Ring) -> str:
        error = await error_of(ring.allreduce(torch.ones(2, dtype=getattr(torch, dtype)), op="band"))
        assert isinstance(error, TypeError)
        return str(error)

    for words in await on_every_rank(1, act, half_precision="native"):
        assert f"op 'band' combines the bits of integers, and these are {dtype}" in words


async def test_the_quotient_of_integers_is_no_sum() -> None:
    async def act(ring: Ring) -> list[object]:
        found = await ring.allreduce(np.array([ring.rank, -ring.rank - 1, 10]), op="quotient")
        error = await error_of(ring.allreduce(np.array([1]), op="quotient" if ring.rank else "sum"))
        return [found.tolist(), type(error)]

    assert await on_every_rank(2, act) == [[[0, -1, 10], ringwide.CollectiveMismatch]] * 2
