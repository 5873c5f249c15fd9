"""NaN and infinity in what a rank brings: ignored, told, or refused before anybody has added to them."""

import asyncio
import logging
import math
from typing import Any

import numpy as np
import pytest
import torch

import ringwide
from local_ring import all_of, error_of, on_every_rank
from ringwide import Ring
from ringwide.tensors.arithmetic import FLOATS, arithmetic_of
from ringwide.tensors.bucket import BufferPool
from ringwide.tensors.leaves import leaves_of
from ringwide.tensors.nonfinite import QUIET_SECONDS, Finding, Inspector
from ringwide.tensors.packing import Bundle, groups_of

pytestmark = pytest.mark.numbers

BAD = [math.nan, math.inf, -math.inf]
BULK = 300_000  # elements of float32: too many bytes for the express lane


# -- the look


def find(tensors: Any, *, half_precision: str = "float32", bucket: str = "") -> Finding | None:
    leaves, signature = leaves_of(tensors)
    groups = groups_of(signature, lambda dtype: arithmetic_of(dtype, "sum", 2, half_precision=half_precision))
    bundle = Bundle(leaves, groups, BufferPool())
    return Inspector(3, time=lambda: 0.0).find(groups, bundle.numbers, signature, bucket)


@pytest.mark.parametrize("half_precision", ["float32", "native"])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_dtype_place_and_value_is_found(dtype: str, bad: float, half_precision: str) -> None:
    for place in (0, 1, 65_535, 65_536, 69_999):
        tensor = torch.ones(7, 10_000, dtype=getattr(torch, dtype))
        tensor.view(-1)[place] = bad
        finding = find(tensor, half_precision=half_precision)
        assert finding is not None
        assert (finding.rank, finding.tensor, finding.index) == (3, "the tensor", divmod(place, 10_000))
        assert finding.value == bad or math.isnan(finding.value) == math.isnan(bad)


@pytest.mark.parametrize("half_precision", ["float32", "native"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_finite_numbers_are_no_alarm_even_if_their_sum_is_infinite(dtype: str, half_precision: str) -> None:
    largest = torch.finfo(getattr(torch, dtype)).max
    for sign in (1, -1):
        assert (
            find(torch.full((1000,), sign * largest, dtype=getattr(torch, dtype)), half_precision=half_precision)
            is None
        )


def test_opposite_infinities_and_numbers_do_not_hide_each_other() -> None:
    finding = find(np.array([1.0, np.finfo(np.float64).max, np.finfo(np.float64).max, -math.inf, math.inf]))
    assert finding is not None
    assert (finding.index, finding.value) == ((3,), -math.inf)


def test_integers_empty_tensors_and_those_without_dimensions() -> None:
    assert find(np.full(5, np.iinfo(np.int16).max, np.int16)) is None
    assert find(torch.full((5,), 0x7F80, dtype=torch.int16)) is None
    assert find(np.empty((0, 3), np.float32)) is None
    finding = find(np.array(math.nan))
    assert finding is not None
    assert (finding.index, str(finding)) == ((), "rank 3 brings nan in the tensor at []")


def test_a_tensor_is_named_as_its_caller_knows_it() -> None:
    good, bad = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    bad[1, 2] = math.inf
    strided = np.ones((3, 2), np.float32).T
    strided[1, 2] = math.nan
    names = {
        "tensor 1": find([good, bad]),
        "tensor 2": find([good, np.ones(4), strided]),
        "tensor 'weight'": find({"weight": bad, "bias": good}),
        "bucket 'gradients 0'": find(bad, bucket="gradients 0"),
        "tensor 0": find([bad, good], bucket="gradients 0"),
    }
    for name, finding in names.items():
        assert finding is not None
        assert (finding.tensor, finding.index) == (name, (1, 2))


def test_a_model_that_brings_nan_to_every_call_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    inspector = Inspector(0, time=lambda: now)
    finding = Finding(0, "tensor 'weight'", (1, 2), math.nan)
    for now in (0.0, 1.0, QUIET_SECONDS - 0.1, QUIET_SECONDS, QUIET_SECONDS + 1):  # noqa: B007 - the clock
        inspector.warn(finding)
    assert [record.getMessage() for record in caplog.records] == [
        "rank 0 brings nan in tensor 'weight' at [1, 2]",
        "rank 0 brings nan in tensor 'weight' at [1, 2] (so did 2 calls since the last such line)",
    ]


# -- the ring


def brought(ring: Ring, count: int, bad: float = math.nan) -> Any:
    mine = np.full(count, ring.rank + 1.0, np.float32)
    if ring.rank == 1:
        mine[count - 2] = bad
    return mine


@pytest.mark.parametrize("policy", ["ignore", "warn"])
async def test_the_collective_goes_on(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def act(ring: Ring) -> list[float]:
        for _ in range(3):
            total: list[float] = (await ring.allreduce(brought(ring, 4, math.inf), op="sum")).tolist()
        return total

    assert await on_every_rank(2, act, on_nonfinite=policy) == [[3.0, 3.0, math.inf, 3.0]] * 2
    said = ["rank 1 brings inf in the tensor at [2]"] if policy == "warn" else []
    assert [record.getMessage() for record in caplog.records if "brings" in record.getMessage()] == said


@pytest.mark.parametrize("count", [5, BULK], ids=["small", "bulk"])
@pytest.mark.parametrize("size", [1, 2, 4])
async def test_it_is_refused_here_and_aborted_there_and_the_ring_works_on(size: int, count: int) -> None:
    async def act(ring: Ring) -> None:
        for kind in ("allreduce", "reduce_scatter"):
            mine = brought(ring, count)
            before = mine.copy()
            error = await error_of(getattr(ring, kind)(mine)) if size > 1 else None
            if size > 1 and ring.rank == 1:
                assert isinstance(error, ringwide.NonfiniteInput)
                assert (error.rank, error.tensor, error.index) == (1, "the tensor", (count - 2,))
                assert math.isnan(error.value)
                assert f"rank 1 brings nan in the tensor at [{count - 2}] (on_nonfinite: raise)" in str(error)
            elif size > 1:
                assert isinstance(error, ringwide.CollectiveAborted)
                assert (error.by, error.reason) == (1, f"rank 1 brings nan in the tensor at [{count - 2}]")
            assert error is None or error.number == (2 if kind == "allreduce" else 4)  # type: ignore[attr-defined]
            assert np.array_equal(mine, before, equal_nan=True)
            total = await ring.allreduce(np.full(count, ring.rank + 1.0, np.float32), op="sum")
            assert (total == size * (size + 1) / 2).all()

    await on_every_rank(size, act, on_nonfinite="raise")


async def test_a_refused_call_keeps_its_place_among_many() -> None:
    """More calls than may be open at a time: the refused one waits for its turn, and no other takes its number."""
    gathered, refused = 100, (0, 30, 90)

    async def act(ring: Ring) -> None:
        parts = [np.full(3, float(index)) for index in range(gathered)]
        for index in refused if ring.rank == 1 else ():
            parts[index][0] = math.nan
        tasks = [asyncio.ensure_future(ring.allreduce(part, op="sum")) for part in parts]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        expected = ringwide.NonfiniteInput if ring.rank == 1 else ringwide.CollectiveAborted
        for index, outcome in enumerate(outcomes):
            if index in refused:
                assert isinstance(outcome, expected)
                assert outcome.number == 2 + index
            else:
                assert not isinstance(outcome, BaseException)
                assert outcome.tolist() == [2.0 * index] * 3

    await on_every_rank(2, act, on_nonfinite="raise")


async def test_a_refused_call_that_is_cancelled_while_it_waits_is_one_of_the_calls_too() -> None:
    async def act(ring: Ring) -> None:
        part = np.full(3, math.nan if ring.rank else 1.0)
        tasks = [asyncio.ensure_future(ring.allreduce(np.ones(3), op="sum")) for _ in range(70)]
        tasks.append(asyncio.ensure_future(ring.allreduce(part)))
        await asyncio.sleep(0)
        if ring.rank:
            tasks[-1].cancel()
        *others, last = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(last, asyncio.CancelledError if ring.rank else ringwide.CollectiveAborted)
        assert all(other.tolist() == [2.0] * 3 for other in others)  # type: ignore[union-attr]
        assert (await ring.allreduce(np.ones(1))).tolist() == [1.0]

    await on_every_rank(2, act, on_nonfinite="raise")


async def test_several_ranks_may_refuse_the_same_call() -> None:
    async def act(ring: Ring) -> str:
        error = await error_of(ring.allreduce({"weight": torch.full((2, 2), 1.0 if ring.rank == 2 else math.nan)}))
        (mean,) = await all_of([ring.allreduce(torch.ones(1))])
        assert mean.tolist() == [1.0]
        return type(error).__name__

    assert await on_every_rank(3, act, on_nonfinite="raise") == [
        "NonfiniteInput",
        "NonfiniteInput",
        "CollectiveAborted",
    ]


async def test_what_is_only_copied_is_not_looked_at() -> None:
    async def act(ring: Ring) -> None:
        gathered = await ring.all_gather(np.full(2, math.nan))
        assert np.isnan(gathered).all()
        assert np.isnan(await ring.broadcast(np.full(2, math.nan))).all()

    await on_every_rank(2, act, on_nonfinite="raise")
