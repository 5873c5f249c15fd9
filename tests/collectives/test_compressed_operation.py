"""Codecs as users of a ring see them: several ranks on one event loop, real connections, numpy as the reference."""

import asyncio
import io
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import ringwide
from local_ring import Everyone, error_of, on_every_rank
from ringwide import Ring
from ringwide.collectives import bucket_operation, compressed_operation
from ringwide.compression import autotune
from ringwide.compression.codecs.registry import LOSSLESS, LOSSY
from ringwide.protocol.frame import HEADER_BYTES

pytestmark = pytest.mark.numbers

Array = Any
SEGMENT = 4096
COUNT = 11_111  # of float32: several segments for each rank, the last one shorter
CODECS: list[dict[str, Any]] = [
    *({"codec": name} for name in LOSSLESS[1:]),
    {"codec": "lz4", "codec_shuffle": True},
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
    """Small segments, all of them encoded, with error feedback for every codec that loses something."""
    return {
        "error_feedback": True,
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
    for module in (compressed_operation, bucket_operation):
        monkeypatch.setattr(module, "RELAYED_LIMIT_BYTES", SEGMENT)
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


async def test_what_is_passed_on_keeps_its_memory_until_it_has_left() -> None:
    """Rank 2 is late, so everything that rank 1 has from the root waits there, in the lane's memory."""
    count, all_is_there = 100_000, asyncio.Event()

    def half_noise(rank: int) -> Array:
        return np.random.default_rng(rank).integers(0, 1 << 16, count, np.int32)

    async def act(ring: Ring) -> None:
        if ring.rank == 2:
            await all_is_there.wait()
        task = asyncio.create_task(ring.broadcast(half_noise(ring.rank), root=0))
        if ring.rank == 1:
            while received_segments(ring) < -(-4 * count // SEGMENT):  # noqa: ASYNC110 - no event for segments
                await asyncio.sleep(0.002)
            all_is_there.set()
        assert np.array_equal(await task, half_noise(0))
        assert ring.rank == 2 or "zlib" in sent_codecs(ring)

    await on_every_rank(3, act, **ring_of({"codec": "zlib"}, buffer_bytes="32KiB"))


def received_segments(ring: Ring) -> int:
    return sum(tally.segments for link in ring.statistics().links for tally in link.received)


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


# -- failures


async def wait_for_bytes(ring: Ring, more: int) -> None:
    before = ring.statistics().bytes_received
    while ring.statistics().bytes_received < before + more:  # noqa: ASYNC110 - there is no event for some bytes
        await asyncio.sleep(0)


def owed(ring: Ring) -> dict[str, bytes]:
    return {name: kept["error"].numpy().tobytes() for name, kept in ring.state_dict().items()}


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("codec", [BF16, {"codec": "lz4"}], ids=named)
async def test_a_call_cancelled_in_the_middle_leaves_tensors_and_errors_as_they_were(
    codec: dict[str, Any], threads: int
) -> None:
    count = 150_000

    async def act(ring: Ring) -> tuple[Array, Array]:
        first = await ring.allreduce(noise(ring.rank, 1, count), "mean", bucket="b")
        before = owed(ring)
        mine = noise(ring.rank, 2, count)
        task = asyncio.create_task(ring.allreduce(mine, "mean", bucket="b"))
        if ring.rank == 1:
            await wait_for_bytes(ring, 20_000)
            task.cancel()
        error = await error_of(task)
        assert isinstance(error, asyncio.CancelledError if ring.rank == 1 else ringwide.CollectiveAborted)
        assert np.array_equal(mine, noise(ring.rank, 2, count))
        assert owed(ring) == before
        mine[:] = -1  # it is ours again: what threads and others still read of it must not matter
        return first, await ring.allreduce(noise(ring.rank, 2, count), "mean", bucket="b")

    async def undisturbed(ring: Ring) -> tuple[Array, Array]:
        return (
            await ring.allreduce(noise(ring.rank, 1, count), "mean", bucket="b"),
            await ring.allreduce(noise(ring.rank, 2, count), "mean", bucket="b"),
        )

    # By sockets with little room, so that there is a middle.
    settings = ring_of(codec, codec_threads=threads, segment_bytes="16KiB", buffer_bytes="64KiB", same_host="unix")
    disturbed = await on_every_rank(3, act, **settings)
    expected = await on_every_rank(3, undisturbed, **settings)
    for results, others in zip(zip(*disturbed, strict=True), zip(*expected, strict=True), strict=True):
        assert same_on_all(results).tobytes() == same_on_all(others).tobytes()


@pytest.mark.parametrize("threads", [0, 2])
async def test_a_lost_peer_leaves_tensors_and_errors_as_they_were(threads: int) -> None:
    count, all_ready, all_know = 150_000, Everyone(3), Everyone(2)

    async def act(ring: Ring) -> None:
        await ring.allreduce(noise(ring.rank, 1, count), bucket="b")
        await all_ready.wait()  # else the loss could reach somebody who is still in this call
        before, mine = owed(ring), noise(ring.rank, 2, count)
        task = asyncio.create_task(ring.allreduce(mine, bucket="b"))
        if ring.rank == 1:
            await wait_for_bytes(ring, 20_000)
            for link in ring._engine.links.values():
                for lane in link.lanes.values():
                    lane.close()
            await all_know.watch()
            task.cancel()
        error = await error_of(task)
        assert isinstance(error, asyncio.CancelledError if ring.rank == 1 else ringwide.PeerLost)
        assert np.array_equal(mine, noise(ring.rank, 2, count))
        assert owed(ring) == before
        if ring.rank != 1:
            await all_know.wait()

    await on_every_rank(3, act, **ring_of(BF16, codec_threads=threads, segment_bytes="16KiB", buffer_bytes="64KiB"))


async def test_a_job_that_fails_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in a thread comes out where somebody awaits."""

    async def act(ring: Ring) -> None:
        await all_ready.wait()
        if ring.rank == 1:
            assert ring._engine.codec_policy is not None
            (codec,) = ring._engine.codec_policy._codecs.values()
            monkeypatch.setattr(codec, "encode", no_memory)
        mine = noise(ring.rank)
        error = await error_of(ring.allreduce(mine))
        assert isinstance(error, ringwide.RingwideError)
        assert "rank 1" in str(error)
        assert "no memory left" in str(error)
        assert np.array_equal(mine, noise(ring.rank))

    def no_memory(numbers: Array) -> None:
        raise MemoryError("no memory left")

    for threads in (0, 2):
        all_ready = Everyone(3)
        await on_every_rank(3, act, **ring_of(BF16, codec_threads=threads))


async def test_two_calls_of_one_bucket_at_the_same_time_are_both_right(caplog: pytest.LogCaptureFixture) -> None:
    async def act(ring: Ring) -> list[Array]:
        return await asyncio.gather(*(ring.allreduce(noise(ring.rank, seed), "sum") for seed in range(3)))

    by_rank = await on_every_rank(2, act, **ring_of(BF16))
    for seed, results in enumerate(zip(*by_rank, strict=True)):
        assert np.abs(same_on_all(results) - noise(0, seed) - noise(1, seed)).max() < 0.1
    assert len(caplog.messages) == 2  # one of each rank
    assert "two open calls have allreduce of float32: float32[11111]" in caplog.messages[0]


# -- error feedback


@every_lossy
@pytest.mark.parametrize("op", ["sum", "mean"])
async def test_what_a_step_drops_the_next_ones_deliver(codec: dict[str, Any], op: str) -> None:
    steps, count, size = 12, 5000, 3

    async def act(ring: Ring) -> tuple[Array, Array]:
        delivered = np.zeros(count)
        for step in range(steps):
            delivered += await ring.allreduce(noise(ring.rank, step, count), op)
        (kept,) = ring.state_dict().values()
        return delivered, kept["error"].numpy()

    by_rank = await on_every_rank(size, act, **ring_of(codec))
    delivered = same_on_all([result for result, _ in by_rank]) * (size if op == "mean" else 1)
    asked = np.sum([noise(rank, step, count) for rank in range(size) for step in range(steps)], axis=0, dtype=float)
    still_owed = np.sum([error for _, error in by_rank], axis=0, dtype=float)
    assert np.abs(delivered + still_owed - asked).max() < 1e-3
    assert np.abs(still_owed).max() > 1e-4


@pytest.mark.parametrize(("codec", "kept"), [(BF16, 0), ({"codec": "topk", "allow_lossy": True}, 1)])
async def test_by_default_only_what_loses_much_has_feedback(codec: dict[str, Any], kept: int) -> None:
    async def act(ring: ringwide.Ring) -> int:
        await ring.allreduce(np.ones(4000, np.float32))
        return len(ring.state_dict())

    assert await on_every_rank(2, act, **ring_of(codec, error_feedback="auto")) == [kept, kept]


async def test_without_error_feedback_nothing_is_kept() -> None:
    async def act(ring: Ring) -> Array:
        results = [await ring.allreduce(noise(ring.rank), "sum") for _ in range(3)]
        assert ring.state_dict() == {}
        assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()
        return results[0]

    same_on_all(await on_every_rank(3, act, **ring_of(BF16, error_feedback=False)))


# -- checkpoints


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@every_lossy
async def test_a_ring_that_was_restarted_goes_on_to_the_bit(codec: dict[str, Any]) -> None:
    def tensors(rank: int, step: int) -> dict[str, Array]:
        return {"a": noise(rank, step, 5000), "b": noise(rank, step + 100, 3000, "float64")}

    async def steps(ring: Ring, numbers: range) -> dict[str, Array]:
        for step in numbers:
            named_ = await ring.allreduce(tensors(ring.rank, step), bucket="layer")
            unnamed = await ring.allreduce(noise(ring.rank, step), "sum")
        return {**named_, "c": unnamed}

    async def whole(ring: Ring) -> dict[str, Array]:
        return await steps(ring, range(8))

    async def first_half(ring: Ring) -> dict[str, Any]:
        await steps(ring, range(4))
        return ring.state_dict()

    states: list[dict[str, Any]] = []

    async def second_half(ring: Ring) -> dict[str, Array]:
        ring.load_state_dict(states[ring.rank])
        return await steps(ring, range(4, 8))

    async def without_its_state(ring: Ring) -> dict[str, Array]:
        return await steps(ring, range(4, 8))

    settings = ring_of(codec)
    expected = await on_every_rank(3, whole, **settings)
    states += [saved_and_loaded(state) for state in await on_every_rank(3, first_half, **settings)]
    found = await on_every_rank(3, second_half, **settings)
    amnesia = await on_every_rank(3, without_its_state, **settings)
    for name in "abc":
        assert same_on_all([rank[name] for rank in found]).tobytes() == expected[0][name].tobytes()
        assert amnesia[0][name].tobytes() != expected[0][name].tobytes()


async def test_a_checkpoint_is_a_copy_in_both_directions() -> None:
    async def act(ring: Ring) -> None:
        await ring.allreduce(noise(ring.rank, 1), bucket="b")
        state = ring.state_dict()
        kept = saved_and_loaded(state)
        await ring.allreduce(noise(ring.rank, 2), bucket="b")
        await ring.allreduce(noise(ring.rank, 3), bucket="b")
        assert torch.equal(state["b (float32)"]["error"], kept["b (float32)"]["error"])
        ring.load_state_dict(state)
        for seed in range(3):
            await ring.allreduce(noise(ring.rank, seed), bucket="b")
        assert torch.equal(state["b (float32)"]["error"], kept["b (float32)"]["error"])

    await on_every_rank(2, act, **ring_of(BF16))


async def test_a_bucket_that_comes_back_with_other_shapes_starts_anew(caplog: pytest.LogCaptureFixture) -> None:
    async def act(ring: Ring) -> Array:
        await ring.allreduce(noise(ring.rank), bucket="layer")
        return await ring.allreduce(noise(ring.rank, 1, 9000), bucket="layer")

    async def fresh(ring: Ring) -> Array:
        return await ring.allreduce(noise(ring.rank, 1, 9000), bucket="layer")

    found = same_on_all(await on_every_rank(2, act, **ring_of(BF16)))
    assert len(caplog.messages) == 2  # one of each rank
    assert caplog.messages[0] == (
        "bucket 'layer (float32)' was allreduce of float32: float32[11111] and is now allreduce of float32: "
        "float32[9000]: the error of its codec so far is dropped"
    )
    assert found.tobytes() == same_on_all(await on_every_rank(2, fresh, **ring_of(BF16))).tobytes()


async def test_a_checkpoint_of_other_shapes_is_dropped_when_the_bucket_comes(caplog: pytest.LogCaptureFixture) -> None:
    async def act(ring: Ring) -> None:
        await ring.allreduce(noise(ring.rank), bucket="layer")
        state = ring.state_dict()
        state["layer (float32)"]["error"] = state["layer (float32)"]["error"][:-1]
        ring.load_state_dict(state)
        result = await ring.allreduce(noise(ring.rank), "sum", bucket="layer")
        assert np.abs(result - noise(0) - noise(1)).max() < 0.1

    await on_every_rank(2, act, **ring_of(BF16))
    assert sum("so far is dropped" in line for line in caplog.messages) == 2


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ({"b": 5}, ValueError, "not from Ring.state_dict"),
        ({"b": {"what": "x"}}, ValueError, "not from Ring.state_dict"),
        ({"b": {"what": "x", "error": torch.ones(3), "more": 1}}, ValueError, "not from Ring.state_dict"),
        ({"b": {"what": "x", "error": "text"}}, TypeError, "'b'"),
        ({"weight": torch.ones(3)}, ValueError, "'weight'"),
    ],
)
async def test_a_state_that_is_none_is_refused_and_nothing_is_lost(
    state: Any, error: type[Exception], words: str
) -> None:
    async def act(ring: Ring) -> None:
        await ring.allreduce(noise(ring.rank), bucket="b")
        before = owed(ring)
        with pytest.raises(error, match=words):
            ring.load_state_dict(state)
        assert owed(ring) == before

    await on_every_rank(2, act, **ring_of(BF16))


async def test_without_a_codec_there_is_no_state_and_loading_one_is_fine() -> None:
    async def act(ring: Ring) -> None:
        await ring.allreduce(noise(ring.rank))
        assert ring.state_dict() == {}
        ring.load_state_dict({"b": {"what": "x", "error": torch.ones(3)}})

    await on_every_rank(2, act, algorithm="ring")


# -- figures


@pytest.mark.parametrize("threads", [0, 2])
async def test_figures_add_up(threads: int) -> None:
    calls, size, count = 3, 3, 12_000

    async def act(ring: Ring) -> Any:
        for _ in range(calls):
            await ring.allreduce(noise(ring.rank, 0, count), "sum")
        await ring.broadcast(noise(ring.rank, 0, count))
        statistics = ring.statistics()
        links = {link.peer: link for link in statistics.links}
        successor, predecessor = links[(ring.rank + 1) % size], links[(ring.rank - 1) % size]
        chunk, segments = 4 * count // size, 4  # 16000 bytes in segments of at most 4096
        laps = calls * 2 * (size - 1)
        (bf16,) = (tally for tally in successor.sent if tally.codec == "bf16")
        assert (bf16.segments, bf16.raw_bytes, bf16.wire_bytes) == (laps * segments, laps * chunk, laps * chunk // 2)
        assert bf16.ratio == 2.0
        (raw,) = (tally for tally in successor.sent if tally.codec == "none") if ring.rank != 2 else (None,)
        assert raw is None or (raw.raw_bytes, raw.wire_bytes, raw.ratio) == (4 * count, 4 * count, 1.0)
        assert (predecessor.sent, successor.received) == ((), ())
        assert successor.encode_seconds > 0 < predecessor.decode_seconds
        assert (predecessor.encode_seconds, successor.decode_seconds) == (0.0, 0.0)
        assert statistics.codec_seconds == successor.encode_seconds + predecessor.decode_seconds
        sent = sum(tally.wire_bytes for tally in successor.sent)
        assert statistics.compression_ratio == sum(tally.raw_bytes for tally in successor.sent) / sent
        frames = sum(tally.segments for tally in successor.sent)
        assert successor.lanes[1].bytes_sent == sent + HEADER_BYTES * frames
        assert statistics.threshold_bytes == 0
        return successor.sent, predecessor.received

    by_rank = await on_every_rank(size, act, **ring_of(BF16, codec_threads=threads))
    for rank in range(size):
        assert by_rank[rank][0] == by_rank[(rank + 1) % size][1]  # what one sent is what the next has received


async def test_without_a_codec_segments_are_counted_as_raw() -> None:
    async def act(ring: Ring) -> None:
        await ring.allreduce(noise(ring.rank))
        statistics = ring.statistics()
        assert {tally.codec for link in statistics.links for tally in link.sent} == {"none"}
        assert (statistics.compression_ratio, statistics.codec_seconds, statistics.choices) == (1.0, 0.0, ())
        assert statistics.threshold_bytes is None

    await on_every_rank(2, act, algorithm="ring", segment_bytes=SEGMENT)


# -- auto


class SlowWorld:
    """The event loop's clock, to which each call of rank 0 adds what its codec is said to take."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def install(self, ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
        codec_policy = ring._engine.codec_policy
        assert codec_policy is not None
        finished = codec_policy.finished

        def as_slow_as_said(plan: Any, jobs: Any, seconds: float, ledgers: Any) -> Any:
            return finished(plan, jobs, self.seconds[jobs[0].codec_name], ledgers)

        monkeypatch.setattr(codec_policy, "finished", as_slow_as_said)


SLOW = {"none": 1.0, "lz4": 2.0, "lz4+shuffle": 2.0, "zlib": 2.0, "bf16": 0.5, "int8": 0.3}
FAST = {"none": 0.01, "lz4": 0.02, "lz4+shuffle": 0.02, "zlib": 0.02, "bf16": 0.02, "int8": 0.02}


async def test_auto_follows_the_network_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(autotune, "QUIET_CALLS", 6)
    world = SlowWorld(SLOW)
    caplog.set_level(logging.INFO, "ringwide.compression")

    async def act(ring: Ring) -> list[str]:
        chosen = []
        if ring.rank == 0:
            world.install(ring, monkeypatch)
        for phase in (SLOW, FAST):
            await ring.barrier()
            world.seconds = phase
            for call in range(40):
                result = await ring.allreduce(noise(ring.rank, call), "sum")
                assert np.abs(result - sum(noise(rank, call) for rank in range(3))).max() < 0.3
            await ring.barrier()
            (found,) = ring.statistics().choices
            assert found.what == "allreduce(sum, float32[11111])"
            chosen += [found.codec, found.reason]
        return chosen

    by_rank = await on_every_rank(3, act, **ring_of({"codec": "auto", "allow_lossy": True}))
    slow, slow_reason, fast, fast_reason = by_rank[0]
    assert (slow, fast) == ("int8", "none")
    assert slow_reason.startswith("0.3 s a call (none 1 s")
    assert fast_reason.startswith("0.01 s a call (")
    assert fast_reason.endswith("calls took 0.02 s instead of 0.3 s)")
    assert all(chosen == by_rank[0] for chosen in by_rank)
    lines = [line for line in caplog.messages if "instead of" in line]
    assert len(lines) == 2  # one of rank 0, each time
    assert {line.split(": ")[1] for line in lines} == {"codec int8 instead of none", "codec none instead of int8"}


async def test_auto_without_permission_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SlowWorld(SLOW | {"lz4": 0.5})

    async def act(ring: Ring) -> None:
        if ring.rank == 0:
            world.install(ring, monkeypatch)
        total = np.sum([compressible(rank) for rank in range(2)], axis=0)
        for _ in range(20):
            assert np.array_equal(await ring.allreduce(compressible(ring.rank), "sum"), total)
        await ring.barrier()
        (found,) = ring.statistics().choices
        assert found.codec == "lz4"
        assert not set(sent_codecs(ring)) & set(LOSSY)

    await on_every_rank(2, act, **ring_of({"codec": "auto"}))


async def test_when_auto_goes_back_to_raw_numbers_what_was_owed_is_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "QUIET_CALLS", 6)
    world = SlowWorld(SLOW)

    async def act(ring: Ring) -> Array:
        if ring.rank == 0:
            world.install(ring, monkeypatch)
        delivered = np.zeros(COUNT)
        for phase in (SLOW, FAST):
            await ring.barrier()
            world.seconds = phase
            for _ in range(40):
                delivered += await ring.allreduce(noise(ring.rank), "sum")
        assert ring.state_dict() == {}
        return delivered

    delivered = same_on_all(await on_every_rank(2, act, **ring_of({"codec": "auto", "allow_lossy": True})))
    assert np.abs(delivered - 80 * (noise(0).astype(float) + noise(1))).max() < 1e-3


async def test_a_threshold_that_is_measured_lets_small_segments_be_tried() -> None:
    async def act(ring: Ring) -> None:
        await ring.allreduce(noise(ring.rank), "sum")
        assert "bf16" in sent_codecs(ring)

    await on_every_rank(2, act, **ring_of(BF16, threshold_bytes="auto", segment_bytes="16KiB"))
