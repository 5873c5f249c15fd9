"""One owner for every bit: ranks whose processors compute differently end with the same bits all the same."""

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
import torch

import ringwide
from local_ring import PATIENCE_SECONDS, free_peers
from ringwide import Ring

SETTINGS: list[dict[str, Any]] = [
    {"algorithm": "tree"},
    {"algorithm": "ring"},
    *({"algorithm": "ring", "codec": codec, "allow_lossy": True} for codec in ("bf16", "fp16", "int8", "topk")),
    {"algorithm": "ring", "codec": "lz4"},
]
COUNT = 3000
TINY = 2.0**-140
"""A subnormal float32, of which sums and means are subnormal too."""


def tensors_of(rank: int) -> list[Any]:
    """Subnormal numbers and larger ones, in every float dtype that has them."""
    generator = torch.Generator().manual_seed(rank)
    small = torch.randint(1, 4, (COUNT,), generator=generator) * TINY
    normal = torch.randn(COUNT, generator=generator)
    mixed = torch.where(torch.arange(COUNT) % 3 == 0, normal, small)
    barely = torch.where(torch.arange(COUNT) % 300 == 0, normal * 2.0**-120, small)  # an int8's steps are tiny
    wide = [small, mixed, barely, normal]
    return [*wide, *(t.double() for t in wide), *(t.bfloat16() for t in wide), (normal * 2.0**-16).half()]


async def bits_of(ring: Ring, *, flushes: bool) -> list[bytes]:
    given = tensors_of(ring.rank)
    torch.set_flush_denormal(flushes)  # a mode of this thread, which computes
    results = [await ring.allreduce(tensor.clone(), op) for op, tensor in product(("sum", "mean", "max"), given)]
    return [result.view(torch.uint8).numpy().tobytes() for result in results]


def one_rank(rank: int, peers: list[str], settings: dict[str, Any], flushing: int) -> list[bytes]:
    """Each rank in a thread of its own, with its own loop, because the mode is a thread's."""

    async def take_part() -> list[bytes]:
        config = ringwide.RingConfig(segment_bytes=4096, threshold_bytes=0, codec_threads=0, **settings)
        async with ringwide.join(rank=rank, peers=peers, config=config) as ring:
            return await bits_of(ring, flushes=rank == flushing)

    return asyncio.run(asyncio.wait_for(take_part(), PATIENCE_SECONDS))


def bits_of_all(size: int, settings: dict[str, Any], flushing: int) -> list[list[bytes]]:
    peers = free_peers(size)
    with ThreadPoolExecutor(size) as threads:
        act = functools.partial(one_rank, peers=peers, settings=settings, flushing=flushing)
        return list(threads.map(act, range(size)))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values())))
@pytest.mark.parametrize(("size", "flushing"), [(2, 0), (2, 1), (3, 1)])
def test_a_rank_that_flushes_subnormal_numbers_ends_with_the_bits_of_all(
    size: int, flushing: int, settings: dict[str, Any]
) -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot flush")
    first, *others = bits_of_all(size, settings, flushing)
    for found in others:
        assert [one == other for one, other in zip(first, found, strict=True)] == [True] * len(first)
