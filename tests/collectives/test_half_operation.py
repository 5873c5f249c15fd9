"""Half precision travels in two bytes where that is exact, and its sums have the bits of sums in float32."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.collectives.test_compressed_operation_bad_frames import SOCKET, VICTIM, VILLAIN, data, send_whole

import ringwide
from local_ring import Everyone, error_of, on_every_rank
from ringwide import Ring
from ringwide.collectives import half_operation

pytestmark = pytest.mark.numbers

DTYPES = [torch.bfloat16, torch.float16]
OPERATIONS = ["sum", "mean", "min", "max", "prod"]
COUNT = 10_007


def numbers_of(rank: int, dtype: torch.dtype, count: int = COUNT) -> torch.Tensor:
    """Of all magnitudes, some subnormal as halves, and some whose sum is infinite."""
    generator = torch.Generator().manual_seed(rank)
    scales = torch.tensor([1.0, 2.0**-18, 2.0**-130, 3e4])[torch.arange(count) % 4]
    return (torch.randn(count, generator=generator) * scales).to(dtype)


def same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Of a NaN only that it is one: torch does not keep more."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("same_host", ["auto", "tcp"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
async def test_sums_have_the_bits_of_sums_in_float32(
    size: int, algorithm: str, same_host: str, dtype: torch.dtype
) -> None:
    async def act(ring: Ring) -> None:
        for op in OPERATIONS:
            given = numbers_of(ring.rank, dtype)
            expected = (await ring.allreduce(given.float(), op)).to(dtype)
            same_bits(await ring.allreduce(given, op), expected)

    await on_every_rank(size, act, algorithm=algorithm, same_host=same_host, segment_bytes=8192)


async def test_partial_sums_go_up_a_deep_tree() -> None:
    """With 18 ranks the tree has ranks that are neither its root nor its leaves."""

    async def act(ring: Ring) -> None:
        for count in (50, 40_000):  # in one segment of an express lane, and in several of a bulk lane
            given = numbers_of(ring.rank, torch.float16, count)
            expected = (await ring.allreduce(given.float(), "sum")).half()
            same_bits(await ring.allreduce(given, "sum"), expected)

    await on_every_rank(18, act, algorithm="tree", same_host="unix")


def bytes_by_wire(ring: Ring) -> int:
    return sum(tally.wire_bytes for link in ring.statistics().links for tally in link.sent)


async def bytes_for_each_number(size: int, given: Any, **settings: Any) -> float:
    """Bytes of payload that all ranks send together in an all-reduce by the ring, for each number."""

    async def act(ring: Ring) -> int:
        before = bytes_by_wire(ring)
        await ring.allreduce(given.clone())
        return bytes_by_wire(ring) - before

    return sum(await on_every_rank(size, act, algorithm="ring", **settings)) / given.numel()


@pytest.mark.parametrize(("size", "fewer"), [(2, 0.5), (4, 1 / 3), (8, 2 / 7)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
async def test_only_partial_sums_need_four_bytes(size: int, fewer: float, dtype: torch.dtype) -> None:
    given = torch.ones(80_000, dtype=dtype)
    wide = await bytes_for_each_number(size, given.float())
    assert wide == 8 * (size - 1)
    assert await bytes_for_each_number(size, given) == pytest.approx(wide * (1 - fewer))
    assert await bytes_for_each_number(size, given, half_precision="native") == wide / 2


@pytest.mark.parametrize("same_host", ["auto", "tcp"])
async def test_sums_that_have_to_wait_have_memory_of_their_own(same_host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_operation, "RELAYED_LIMIT_BYTES", 0)

    async def act(ring: Ring) -> None:
        given = torch.full((1_000_000,), float(ring.rank + 1), dtype=torch.bfloat16)
        assert (await ring.allreduce(given, "sum") == 6).all()

    await on_every_rank(3, act, algorithm="ring", same_host=same_host, segment_bytes=65536)


async def test_halves_of_numpy_are_reduced_where_they_lie() -> None:
    async def act(ring: Ring) -> None:
        for count in (10, 100_000):
            given = np.full(count, ring.rank + 0.5, np.float16)
            for _ in range(3):  # a small one that is known takes a shorter way
                assert await ring.allreduce(given) is given
                assert (given == 1).all()
            assert (await ring.reduce_scatter(given, "sum") == 2).all()

    await on_every_rank(2, act)


@pytest.mark.parametrize("rank", [0, 1])
async def test_after_an_error_tensors_hold_what_they_held(rank: int) -> None:
    all_called = Everyone(2)

    async def act(ring: Ring) -> None:
        given = numbers_of(ring.rank, torch.float16, 500_000)
        before = given.clone()
        other = given if ring.rank == rank else given.bfloat16()
        error = await error_of(ring.allreduce(other))
        assert isinstance(error, ringwide.CollectiveMismatch)
        same_bits(given, before)
        await all_called.wait()
        expected = (await ring.allreduce(given.float())).half()
        same_bits(await ring.allreduce(given), expected)

    await on_every_rank(2, act)


@pytest.mark.parametrize(("hop", "segment", "itemsize"), [(1, 2, 4), (1, 2, 3), (2, 1, 2)])
async def test_a_payload_of_another_width_is_refused(hop: int, segment: int, itemsize: int) -> None:
    """An input comes in two bytes, a partial sum in four, whatever the sender says."""
    count, all_ready, all_know = 30_000, Everyone(3), Everyone(2)

    async def act(ring: Ring) -> None:
        given = torch.ones(count, dtype=torch.bfloat16)
        await ring.allreduce(given)
        await all_ready.wait()
        if ring.rank == VILLAIN:
            await send_whole(ring, 1, data(ring, 0, bytes(count // 3 * itemsize), hop=hop, segment=segment))
            await all_know.watch()
            return
        error = await error_of(ring.allreduce(given))
        if ring.rank == VICTIM:
            assert isinstance(error, ringwide.RemoteProtocolError)
            right = 2 if hop == 1 else 4
            assert f"in {count // 3 * itemsize} bytes, where it has {count // 3 * right}" in str(error)
        assert (given == 1).all()
        await all_know.wait()

    await on_every_rank(3, act, algorithm="ring", segment_bytes=count // 3 * 4, **SOCKET)
