"""Codecs as users of a ring see them: several ranks on one event loop, real connections, numpy as the reference."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from local_ring import on_every_rank
from ringwide import Ring
from ringwide.codec.registry import LOSSLESS, LOSSY
from ringwide.collective import coded, operation

Array = Any
SEGMENT = 4096
COUNT = 11_111  # of float32: several segments for each rank, the last one shorter
CODECS: list[dict[str, Any]] = [
    *({"codec": name} for name in LOSSLESS[1:]),
    *({"codec": name, "codec_shuffle": True} for name in LOSSLESS[1:]),
    *({"codec": name, "allow_lossy": True} for name in LOSSY),
]
LOSSY_CODECS = [codec for codec in CODECS if "allow_lossy" in codec]
LOSSLESS_CODECS = [codec for codec in CODECS if "allow_lossy" not in codec]
BF16 = {"codec": "bf16", "allow_lossy": True}

WORST = {"bf16": 2.0**-8, "fp16": 2.0**-10, "int8": 1 / 127}
"""How far a number may be from what a codec makes of it, as a share of the largest number in the segment."""


def named(codec: dict[str, Any]) -> str:
    return str(codec["codec"]) + ("+shuffle" if "codec_shuffle" in codec else "")


every_codec = pytest.mark.parametrize("codec", CODECS, ids=named)
every_lossy = pytest.mark.parametrize("codec", LOSSY_CODECS, ids=named)
every_lossless = pytest.mark.parametrize("codec", LOSSLESS_CODECS, ids=named)


def ring_of(codec: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Small segments, all of them encoded."""
    return {
        "algorithm": "ring",
        "segment_bytes": SEGMENT,
        "threshold_bytes": 0,
        "codec_threads": 0,
        **codec,
        **others,
    }


def noise(rank: int, seed: int = 0, count: int = COUNT, dtype: str = "float32") -> Array:
    return np.random.default_rng([rank, seed]).standard_normal(count).astype(dtype)


def compressible(rank: int, seed: int = 0, count: int = COUNT, dtype: str = "float32") -> Array:
    """Long runs of equal small integers, with a little noise between them."""
    chance = np.random.default_rng([rank, seed])
    runs = np.repeat(chance.integers(0, 50, -(-count // 40)), 40)[:count].astype(dtype)
    runs[::300] = chance.integers(0, 100, runs[::300].size)
    return runs


def same_on_all(by_rank: Sequence[Array]) -> Array:
    first = by_rank[0]
    assert all(first.tobytes() == other.tobytes() for other in by_rank[1:])
    return first


def sent_codecs(ring: Ring) -> dict[str, int]:
    """How many segments this rank has sent with each codec."""
    counts: dict[str, int] = {}
    for link in ring.statistics().links:
        for tally in link.sent:
            counts[tally.codec] = counts.get(tally.codec, 0) + tally.segments
    return counts


# -- right numbers


@every_codec
@pytest.mark.parametrize(("size", "threads"), [(2, 2), (3, 0), (4, 2), (5, 0)])
async def test_all_ranks_get_the_same_bits_and_they_are_near_enough(
    codec: dict[str, Any], size: int, threads: int
) -> None:
    async def act(ring: Ring) -> list[Array]:
        results = []
        for op in ("sum", "mean"):
            results.append(await ring.allreduce(noise(ring.rank), op, bucket=op))
            results.append(await ring.allreduce(compressible(ring.rank), op, bucket=f"even {op}"))
        assert named(codec) in sent_codecs(ring)
        return results

    by_rank = await on_every_rank(size, act, **ring_of(codec, codec_threads=threads))
    for case, results in enumerate(zip(*by_rank, strict=True)):
        given = [(compressible if case % 2 else noise)(rank) for rank in range(size)]
        exact = np.sum(given, axis=0, dtype=np.float64) / (size if case > 1 else 1)
        error = np.abs(same_on_all(results) - exact).max()
        if codec in LOSSLESS_CODECS:
            assert error <= 1e-5
        elif codec["codec"] != "topk":
            sums = np.abs(given).max() * sum(range(1, size)) + np.abs(exact).max()  # on their way, and the total
            assert error <= WORST[codec["codec"]] * sums
            assert error > 0 or case % 2  # the even ones may be exact


@every_lossless
async def test_a_lossless_codec_gives_the_bits_that_no_codec_gives(codec: dict[str, Any]) -> None:
    cases = [
        (fill, dtype, op)
        for fill in (noise, compressible)
        for dtype, op in [
            ("float64", "mean"),
            ("float32", "max"),
            ("float16", "sum"),
            ("int16", "prod"),
            ("uint8", "sum"),
        ]
    ]

    async def act(ring: Ring) -> list[bytes]:
        with np.errstate(all="ignore"):
            return [(await ring.allreduce(fill(ring.rank, 1, 5001, dtype), op)).tobytes() for fill, dtype, op in cases]

    encoded = await on_every_rank(3, act, **ring_of(codec, codec_threads=2))
    raw = await on_every_rank(3, act, algorithm="ring", segment_bytes=SEGMENT)
    assert encoded == raw


@every_codec
async def test_lists_of_mixed_dtypes(codec: dict[str, Any]) -> None:
    """Each dtype is a bucket of its own: floats may lose something, integers never."""

    def tensors(rank: int) -> list[Any]:
        return [
            noise(rank, 1),
            compressible(rank, 2, dtype="int32"),
            torch.from_numpy(noise(rank, 3)).to(torch.bfloat16),
            noise(rank, 4, dtype="float64"),
            compressible(rank, 5, 100, "uint8"),
            noise(rank, 6, 77),
            torch.from_numpy(noise(rank, 7, dtype="float16")),
        ]

    async def act(ring: Ring) -> list[Any]:
        return await ring.allreduce(tensors(ring.rank), "sum")

    by_rank = await on_every_rank(3, act, **ring_of(codec, codec_threads=2))
    for results, given in zip(
        zip(*by_rank, strict=True), zip(*(tensors(rank) for rank in range(3)), strict=True), strict=True
    ):
        arrays = [torch.as_tensor(result).to(torch.float64).numpy() for result in results]
        exact = sum(torch.as_tensor(part).to(torch.float64).numpy() for part in given)
        found = same_on_all(arrays)
        if results[0].dtype in (np.int32, np.uint8):
            assert np.array_equal(found, exact)
        elif codec["codec"] != "topk":
            assert np.abs(found - exact).max() < 0.3


@every_lossy
@pytest.mark.parametrize("size", [2, 4])
async def test_what_is_not_finite_arrives_as_what_it_is(codec: dict[str, Any], size: int) -> None:
    async def act(ring: Ring) -> Array:
        mine = noise(ring.rank)
        if ring.rank == 1:
            mine[[5, 700, 10_000]] = [np.nan, np.inf, -np.inf]
        result = await ring.allreduce(mine, "mean")
        assert {"none", named(codec)} <= set(sent_codecs(ring))  # a segment for itself, not the whole bucket
        return result

    result = same_on_all(await on_every_rank(size, act, **ring_of(codec)))
    assert np.flatnonzero(~np.isfinite(result)).tolist() == [5, 700, 10_000]
    assert str(result[[5, 700, 10_000]].tolist()) == "[nan, inf, -inf]"


@every_lossy
@pytest.mark.parametrize("op", ["max", "min", "prod"])
async def test_only_sums_lose_something(codec: dict[str, Any], op: str) -> None:
    """Also right after a mean of the same tensors, which leaves an error behind."""

    async def act(ring: Ring) -> Array:
        await ring.allreduce(noise(ring.rank, 1), "mean")
        await ring.allreduce(noise(ring.rank, 1), "mean", bucket="b")
        result = await ring.allreduce(noise(ring.rank), op)
        named_result = await ring.allreduce(noise(ring.rank), op, bucket="b")
        assert named_result.tobytes() == result.tobytes()
        return result

    result = same_on_all(await on_every_rank(3, act, **ring_of(codec)))
    given = [noise(rank) for rank in range(3)]
    if op == "prod":
        assert np.allclose(result, np.prod(given, axis=0), rtol=1e-6)
    else:
        assert np.array_equal(result, getattr(np, op)(given, axis=0))


@every_lossy
async def test_integers_broadcasts_and_gathers_lose_nothing(codec: dict[str, Any]) -> None:
    async def act(ring: Ring) -> None:
        assert np.array_equal(await ring.broadcast(noise(ring.rank), root=2), noise(2))
        for rank, part in enumerate(await ring.all_gather(noise(ring.rank))):
            assert np.array_equal(part, noise(rank))
        total = np.sum([compressible(rank, 3, dtype="int64") for rank in range(3)], axis=0)
        assert np.array_equal(await ring.allreduce(compressible(ring.rank, 3, dtype="int64"), "sum"), total)
        assert set(sent_codecs(ring)) <= {"none"}

    await on_every_rank(3, act, **ring_of(codec))


@every_lossless
async def test_every_collective_is_encoded_where_that_makes_it_smaller(codec: dict[str, Any]) -> None:
    async def act(ring: Ring) -> None:
        mine = compressible(ring.rank)
        for dtype in ("float32", "int16"):
            both = [compressible(ring.rank, 1, dtype=dtype), compressible(ring.rank, 2, 6000, "uint8")]
            await ring.broadcast(both, root=1)
            assert np.array_equal(both[0], compressible(1, 1, dtype=dtype))
            assert np.array_equal(both[1], compressible(1, 2, 6000, "uint8"))
        for rank, part in enumerate(await ring.all_gather(mine)):
            assert np.array_equal(part, compressible(rank))
        share = slice(COUNT * ring.rank // 3, COUNT * (ring.rank + 1) // 3)
        total = np.sum([compressible(rank) for rank in range(3)], axis=0)[share]
        assert np.array_equal(await ring.reduce_scatter(mine, "sum"), total)
        assert np.array_equal(mine, compressible(ring.rank))
        assert ring.statistics().compression_ratio > 1.5
        assert named(codec) in sent_codecs(ring)

    await on_every_rank(3, act, **ring_of(codec, codec_threads=1))


@pytest.mark.parametrize("threads", [0, 2])
async def test_a_reduce_scatter_may_be_lossy_and_is_right_call_after_call(threads: int) -> None:
    async def act(ring: Ring) -> None:
        share = slice(COUNT * ring.rank // 3, COUNT * (ring.rank + 1) // 3)
        exact = np.sum([noise(rank) for rank in range(3)], axis=0)[share]
        delivered, calls = np.zeros(exact.size), 8
        for _ in range(calls):
            part = await ring.reduce_scatter(noise(ring.rank), "sum")
            assert np.abs(part - exact).max() < 0.1
            delivered += part
        assert np.abs(delivered - calls * exact).max() < 0.1

    await on_every_rank(3, act, **ring_of(BF16, codec_threads=threads))


@pytest.mark.parametrize("codec", [{"codec": "lz4"}, {"codec": "zlib", "codec_shuffle": True}], ids=named)
@pytest.mark.parametrize("threads", [0, 2])
async def test_much_that_waits_to_leave_harms_nothing(
    codec: dict[str, Any], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a limit payloads wait in the buckets themselves."""
    for module in (coded, operation):
        monkeypatch.setattr(module, "RELAYED_LIMIT_BYTES", 4 * SEGMENT)
    count = 50_000

    async def act(ring: Ring) -> None:
        for rank, part in enumerate(await ring.all_gather(compressible(ring.rank, 0, count))):
            assert np.array_equal(part, compressible(rank, 0, count))
        lists = [compressible(ring.rank, 1, count), compressible(ring.rank, 2, count)]
        await ring.broadcast(lists, root=1)
        assert np.array_equal(lists[1], compressible(1, 2, count))
        total = np.sum([compressible(rank, 3, count) for rank in range(3)], axis=0)
        for mine in (compressible(ring.rank, 3, count), [compressible(ring.rank, 3, count), np.ones(1, np.float32)]):
            result = await ring.allreduce(mine, "sum")
            assert np.array_equal(result if isinstance(mine, np.ndarray) else result[0], total)

    await on_every_rank(3, act, **ring_of(codec, codec_threads=threads, buffer_bytes="16KiB"))


async def test_segments_below_the_threshold_travel_raw_even_beside_encoded_ones() -> None:
    async def act(ring: Ring) -> None:
        await ring.allreduce([noise(ring.rank), noise(ring.rank, dtype="float64")[:2000]], "sum")
        sent = {tally.codec: tally for link in ring.statistics().links for tally in link.sent}
        assert set(sent) == {"none", "bf16"}
        assert sent["none"].raw_bytes == sent["none"].wire_bytes

    await on_every_rank(3, act, **ring_of(BF16, threshold_bytes=3000))


@pytest.mark.parametrize("threads", [0, 2])
async def test_several_calls_at_once(threads: int) -> None:
    async def act(ring: Ring) -> list[Array]:
        calls = [ring.allreduce(noise(ring.rank, seed), "mean", bucket=str(seed)) for seed in range(10)]
        return await asyncio.gather(*calls)

    by_rank = await on_every_rank(3, act, **ring_of(BF16, codec_threads=threads, lanes=2))
    for seed, results in enumerate(zip(*by_rank, strict=True)):
        exact = np.mean([noise(rank, seed) for rank in range(3)], axis=0)
        assert np.abs(same_on_all(results) - exact).max() < 0.05
