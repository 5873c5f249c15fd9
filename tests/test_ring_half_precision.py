"""Half precision is narrowed once, by the owner of a total: every rank has its bits, whatever its layout."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from local_ring import on_every_rank
from ringwide import Ring

ROWS, COLUMNS = 24, 50
NANS = {torch.bfloat16: 0x7F81, torch.float16: 0x7C01}
"""Those that are not quiet, with a payload of their own."""
HALVES = [torch.bfloat16, torch.float16]
WAYS: list[dict[str, Any]] = [
    {"algorithm": "tree"},
    {"algorithm": "ring"},
    {"algorithm": "tree", "half_precision": "native"},
    {"algorithm": "ring", "half_precision": "native"},
    {"algorithm": "ring", "codec": "lz4", "threshold_bytes": 0},
    *(
        {"algorithm": "ring", "codec": codec, "allow_lossy": True, "threshold_bytes": 0, "error_feedback": feedback}
        for codec in ("bf16", "fp16", "int8", "topk")
        for feedback in (False, True)
    ),
]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))


def numbers_of(rank: int, dtype: torch.dtype, *, nans: bool) -> torch.Tensor:
    """Normal ones, those that are subnormal as halves, those whose sum is infinite; and NaNs."""
    generator = torch.Generator().manual_seed(rank)
    scales = torch.tensor([1.0, 2.0**-18, 2.0**-130, 3e4])[torch.arange(ROWS * COLUMNS) % 4]
    numbers = (torch.randn(ROWS * COLUMNS, generator=generator) * scales).to(dtype).view(ROWS, COLUMNS)
    if nans:
        numbers.view(torch.int16)[rank::5, ::7] = NANS[dtype]
    return numbers


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.t().contiguous().t()


def strided(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros(ROWS, 2 * COLUMNS, dtype=tensor.dtype)
    wide[:, ::2] = tensor
    return wide[:, ::2]


def as_bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(torch.int16).flatten().tolist()


LAYOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [torch.clone, transposed, strided]


@every_way
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("size", [1, 3])
async def test_all_ranks_have_the_same_bits_whatever_the_layout(
    size: int, dtype: torch.dtype, way: dict[str, Any]
) -> None:
    async def act(ring: Ring) -> list[list[int]]:
        layout, found = LAYOUTS[ring.rank], []
        for op, nans in (("mean", False), ("mean", True), ("max", True), ("prod", True)):
            given = layout(numbers_of(ring.rank, dtype, nans=nans))
            found.append(as_bits(await ring.allreduce(given, op)))
            pair = [layout(numbers_of(ring.rank, dtype, nans=nans)), torch.ones(3, dtype=dtype)]
            found += map(as_bits, await ring.allreduce(pair, op))
        return found

    first, *others = await on_every_rank(size, act, segment_bytes=4096, codec_threads=0, **way)
    assert others == [first] * (size - 1)


@every_way
@pytest.mark.parametrize("dtype", HALVES, ids=str)
async def test_reduce_and_reduce_scatter_give_what_allreduce_gives(dtype: torch.dtype, way: dict[str, Any]) -> None:
    """Except where a codec loses something: the owner of a share keeps it to itself, and nothing of it is lost."""
    exact = way.get("codec", "none") in ("none", "lz4")

    async def act(ring: Ring) -> None:
        given = numbers_of(ring.rank, dtype, nans=False)
        total = as_bits(await ring.allreduce(given.clone(), "sum"))
        reduced = as_bits(await ring.reduce(transposed(given), root=1, op="sum"))
        assert not exact or reduced == (total if ring.rank == 1 else as_bits(given))
        share = slice(given.numel() * ring.rank // 3, given.numel() * (ring.rank + 1) // 3)
        scattered = await ring.reduce_scatter(given, "sum")
        assert scattered.dtype == dtype
        into = torch.zeros(2 * scattered.numel(), dtype=dtype)[::2]
        await ring.reduce_scatter(strided(given), "sum", into=into)
        if exact:
            assert [as_bits(scattered), as_bits(into)] == [total[share]] * 2

    await on_every_rank(3, act, segment_bytes=4096, codec_threads=0, **way)


@pytest.mark.parametrize("algorithm", ["tree", "ring"])
@pytest.mark.parametrize("size", [1, 2])
async def test_numpys_halves_are_narrowed_as_torchs(size: int, algorithm: str) -> None:
    async def act(ring: Ring) -> None:
        given = numbers_of(ring.rank, torch.float16, nans=True)
        array, backwards = given.numpy().copy(), given.numpy().copy()[:, ::-1]
        expected = as_bits(await ring.allreduce(given.clone()))
        assert (await ring.allreduce(array)).view(np.int16).flatten().tolist() == expected
        assert (await ring.allreduce(backwards))[:, ::-1].copy().dtype == np.float16
        share = slice(array.size * ring.rank // size, array.size * (ring.rank + 1) // size)
        scattered = await ring.reduce_scatter(given.numpy())
        assert scattered.dtype == np.float16
        assert scattered.view(np.int16).tolist() == expected[share]

    await on_every_rank(size, act, algorithm=algorithm, segment_bytes=4096)


async def test_on_nonfinite_looks_at_what_is_brought() -> None:
    async def act(ring: Ring) -> None:
        total = await ring.allreduce(torch.full((5,), 4e4, dtype=torch.float16), "sum")
        assert torch.isinf(total).all()  # made by adding, not brought

    await on_every_rank(2, act, on_nonfinite="raise")
