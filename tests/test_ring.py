"""The ring as its users see it: several ranks on one event loop, real connections, numpy as the reference."""

import asyncio
import copy
import functools
import gc
import itertools
import math
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ringwide
from local_ring import error_of, free_peers, on_every_rank
from ringwide import Ring
from ringwide.bootstrap.form_ring import RingFormation
from ringwide.compression.policy import CodecPolicy
from ringwide.runtime.core import notes
from ringwide.tensors.arithmetic import DTYPES, FLOATS, INTEGERS, OPERATIONS

SIZES = [1, 2, 3, 4, 5]
ALGORITHMS = ["ring", "tree"]  # auto is one of them for each bucket
NUMPY_DTYPES = [dtype for dtype in DTYPES if dtype != "bfloat16"]
SMALLEST_SEGMENT = 4096
BULK = 300_000  # elements of float32: too many bytes for the express lane

every_size = pytest.mark.parametrize("size", SIZES)
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
few_or_many_cores = pytest.mark.parametrize("cores", [1, 64], indirect=True)

UFUNCS = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}


@pytest.fixture
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many cores are there for all ranks: with few, `auto` takes the tree for larger buckets."""
    count: int = request.param
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(count)))
    return count


def numbers_of(rank: int, shape: tuple[int, ...] | int, dtype: str, seed: int = 0) -> Any:
    """Small whole numbers, so that every sum and product is exact in every dtype."""
    chance = np.random.default_rng([rank, seed])
    return chance.integers(1, 3, size=shape).astype(dtype)


def reference(parts: list[Any], op: str) -> Any:
    """What the ring must give for these parts of all ranks."""
    wide = [part.astype(np.float32) if part.dtype == np.float16 else part for part in parts]
    total = functools.reduce(UFUNCS[op], wide)
    if op == "mean":
        total = total / total.dtype.type(len(parts))
    return total.astype(parts[0].dtype)


def all_parts(size: int, shape: tuple[int, ...] | int, dtype: str, seed: int = 0) -> list[Any]:
    return [numbers_of(rank, shape, dtype, seed) for rank in range(size)]


def valid(dtype: str, op: str) -> bool:
    return op != "mean" or dtype in FLOATS


# -- right numbers

SHAPES = [(), (0, 4), (3, 5), (5001,)]


@pytest.mark.numbers
@every_algorithm
@every_size
async def test_allreduce(size: int, algorithm: str) -> None:
    cases = [(dtype, op, shape) for dtype in NUMPY_DTYPES for op in OPERATIONS for shape in SHAPES if valid(dtype, op)]

    async def act(ring: Ring) -> None:
        for seed, (dtype, op, shape) in enumerate(cases):
            array = numbers_of(ring.rank, shape, dtype, seed)
            assert await ring.allreduce(array, op) is array
            expected = reference(all_parts(size, shape, dtype, seed), op)
            assert np.array_equal(array, expected), (dtype, op, shape)

    await on_every_rank(size, act, algorithm=algorithm, segment_bytes=SMALLEST_SEGMENT)


@every_algorithm
@every_size
async def test_reduce_scatter(size: int, algorithm: str) -> None:
    cases = [
        ("float32", "mean", 7),
        ("int64", "sum", (3, 5)),
        ("float16", "max", 1),
        ("uint8", "sum", 5001),
        ("int8", "sum", 0),
    ]

    async def act(ring: Ring) -> None:
        for dtype, op, shape in cases:
            array = numbers_of(ring.rank, shape, dtype)
            before = array.copy()
            part = await ring.reduce_scatter(array, op)
            flat = reference(all_parts(size, shape, dtype), op).reshape(-1)
            share = flat[flat.size * ring.rank // size : flat.size * (ring.rank + 1) // size]
            assert np.array_equal(part, share)
            assert part.dtype == array.dtype
            assert np.array_equal(array, before)

    await on_every_rank(size, act, algorithm=algorithm, segment_bytes=SMALLEST_SEGMENT)


@pytest.mark.numbers
@every_algorithm
@every_size
async def test_all_gather(size: int, algorithm: str) -> None:
    async def act(ring: Ring) -> None:
        for dtype in NUMPY_DTYPES:
            for shape in ((), (0, 2), (3, 5), (20_001,)):
                parts = await ring.all_gather(numbers_of(ring.rank, shape, dtype))
                expected = all_parts(size, shape, dtype)
                assert [part.dtype for part in parts] == [np.dtype(dtype)] * size
                assert all(np.array_equal(*pair) for pair in zip(parts, expected, strict=True))

    await on_every_rank(size, act, algorithm=algorithm, segment_bytes=SMALLEST_SEGMENT)


@every_algorithm
@every_size
async def test_broadcast(size: int, algorithm: str) -> None:
    async def act(ring: Ring) -> None:
        for root in range(size):
            tensors = {dtype: numbers_of(ring.rank, 1000 * root, dtype, root) for dtype in NUMPY_DTYPES}
            assert await ring.broadcast(tensors, root=root) is tensors
            for dtype, array in tensors.items():
                assert np.array_equal(array, numbers_of(root, 1000 * root, dtype, root))

    await on_every_rank(size, act, algorithm=algorithm, segment_bytes=SMALLEST_SEGMENT)


@every_size
async def test_a_barrier_opens_when_the_last_rank_has_come(size: int) -> None:
    came: list[int] = []

    async def act(ring: Ring) -> None:
        for other in range(size):
            came.append(ring.rank)
            await ring.barrier()
            assert len(came) >= size * (other + 1)

    await on_every_rank(size, act)


async def test_the_mean_is_the_default() -> None:
    async def act(ring: Ring) -> list[float]:
        return (await ring.allreduce(np.array([ring.rank, 4.0 * ring.rank]))).tolist()

    assert await on_every_rank(2, act) == [[0.5, 2.0]] * 2


async def test_torch_tensors_of_every_dtype_in_containers() -> None:
    async def act(ring: Ring) -> None:
        def tensors() -> list[torch.Tensor]:
            return [torch.full((3,), ring.rank + 1).to(getattr(torch, dtype)) for dtype in DTYPES]

        for container in (list, tuple):
            summed = await ring.allreduce(container(tensors()), op="sum")
            assert type(summed) is container
            assert all(tensor.tolist() == [6, 6, 6] for tensor in summed)
        named = await ring.broadcast(dict(zip(DTYPES, tensors(), strict=True)), root=2)
        assert all(tensor.tolist() == [3, 3, 3] for tensor in named.values())
        for dtype, tensor in zip(DTYPES, tensors(), strict=True):
            assert [part.tolist() for part in await ring.all_gather(tensor)] == [[1] * 3, [2] * 3, [3] * 3], dtype
            part = await ring.reduce_scatter(tensor, op="max")
            assert (part.tolist(), part.dtype) == ([3], tensor.dtype)

    await on_every_rank(3, act)


async def test_parameters_and_strided_views_are_reduced_in_place() -> None:
    async def act(ring: Ring) -> None:
        parameter = torch.nn.Parameter(torch.full((5, 4), float(ring.rank)))
        columns = torch.full((5, 4), float(ring.rank))
        await ring.allreduce([parameter, columns[:, ::2]], op="sum")
        assert parameter.tolist() == [[1.0] * 4] * 5
        assert columns.tolist() == [[1.0, ring.rank, 1.0, ring.rank]] * 5

    await on_every_rank(2, act)


@pytest.mark.parametrize("settings_", [{"segment_bytes": 4100}, {"segment_bytes": 5001, "lanes": 3}])
async def test_segments_need_not_be_a_multiple_of_the_numbers(settings_: dict[str, Any]) -> None:
    async def act(ring: Ring) -> None:
        for count in (1025, 1026, 2049, 100_000):
            array = numbers_of(ring.rank, count, "float64")
            await ring.allreduce(array, op="sum")
            assert np.array_equal(array, reference(all_parts(2, count, "float64"), "sum"))

    await on_every_rank(2, act, algorithm="ring", **settings_)


@pytest.mark.parametrize("size", [4, 5])
async def test_more_than_the_express_lane_carries(size: int) -> None:
    async def act(ring: Ring) -> None:
        array = numbers_of(ring.rank, BULK, "float32")
        assert ring.algorithm_for(array.nbytes) == "tree"
        await ring.allreduce(array, op="sum")
        assert np.array_equal(array, reference(all_parts(size, BULK, "float32"), "sum"))

    await on_every_rank(size, act, algorithm="tree", lanes=2, segment_bytes="64KiB")


@every_algorithm
async def test_eight_ranks(algorithm: str) -> None:
    async def act(ring: Ring) -> None:
        for count in (1, 1000, BULK):
            array = numbers_of(ring.rank, count, "float32")
            await ring.allreduce(array)
            assert np.array_equal(array, reference(all_parts(8, count, "float32"), "mean"))

    await on_every_rank(8, act, algorithm=algorithm)


# -- many collectives

Call = tuple[str, str, str, tuple[int, ...], int]
calls = st.tuples(
    st.sampled_from(["allreduce", "reduce_scatter", "all_gather", "broadcast", "barrier"]),
    st.sampled_from(OPERATIONS),
    st.sampled_from(NUMPY_DTYPES),
    st.lists(st.sampled_from([0, 1, 2, 17, 300]), max_size=2).map(tuple),
    st.integers(0, 4),
).filter(lambda call: valid(call[2], call[1]))


def carry_out(ring: Ring, call: Call, seed: int) -> Awaitable[bool]:
    """Make this call now, and say when it is over whether the result was right."""
    kind, op, dtype, shape, root = call
    parts = all_parts(ring.size, shape, dtype, seed)
    mine, root = parts[ring.rank].copy(), root % ring.size
    match kind:
        case "allreduce":
            return judged(ring.allreduce(mine, op), lambda sum_: np.array_equal(sum_, reference(parts, op)))
        case "reduce_scatter":
            flat = reference(parts, op).reshape(-1)
            share = flat[flat.size * ring.rank // ring.size : flat.size * (ring.rank + 1) // ring.size]
            return judged(ring.reduce_scatter(mine, op), lambda part: np.array_equal(part, share))
        case "all_gather":
            return judged(ring.all_gather(mine), lambda all_: all(map(np.array_equal, all_, parts)))
        case "broadcast":
            return judged(ring.broadcast(mine, root), lambda sent: np.array_equal(sent, parts[root]))
    return judged(ring.barrier(), lambda _: True)


async def judged(call: Awaitable[Any], is_right: Callable[[Any], bool]) -> bool:
    return is_right(await call)


@given(
    size=st.integers(1, 5),
    program=st.lists(calls, min_size=1, max_size=12),
    config=st.sampled_from([{}, {"algorithm": "ring", "lanes": 3}, {"algorithm": "tree"}]),
    gatherers=st.integers(0, 31),
)
@settings(max_examples=25)
async def test_any_program_of_calls_gathered_by_some_ranks_and_awaited_one_by_one_by_others(
    size: int, program: list[Call], config: dict[str, Any], gatherers: int
) -> None:
    async def act(ring: Ring) -> list[bool]:
        if gatherers >> ring.rank & 1:
            return await asyncio.gather(*[carry_out(ring, call, seed) for seed, call in enumerate(program)])
        return [await carry_out(ring, call, seed) for seed, call in enumerate(program)]

    right = await on_every_rank(size, act, segment_bytes=SMALLEST_SEGMENT, **config)
    assert right == [[True] * len(program)] * size


@pytest.mark.parametrize("size", [2, 3])
async def test_more_collectives_at_once_than_may_be_open(size: int) -> None:
    """Large and small ones, gathered by one rank and awaited one after the other by the next."""
    counts = [1, 100_000, 10, 5000] * 50

    def one(ring: Ring, seed: int, count: int) -> Awaitable[bool]:
        expected = reference(all_parts(size, count, "float32", seed), "sum")
        sum_ = ring.allreduce(numbers_of(ring.rank, count, "float32", seed), op="sum")
        return judged(sum_, lambda array: np.array_equal(array, expected))

    async def act(ring: Ring) -> list[bool]:
        if ring.rank % 2:
            return [await one(ring, seed, count) for seed, count in enumerate(counts)]
        return await asyncio.gather(*(one(ring, seed, count) for seed, count in enumerate(counts)))

    right = await on_every_rank(size, act, segment_bytes="64KiB")
    assert right == [[True] * len(counts)] * size


async def test_a_rank_may_leave_while_others_are_in_their_last_collective() -> None:
    async def act(ring: Ring) -> list[float]:
        for _ in range(5):
            await ring.barrier()
        return (await ring.allreduce(np.full(BULK, ring.rank, np.float32), op="sum"))[:2].tolist()

    for _ in range(5):
        assert await on_every_rank(3, act, stay=False) == [[3.0, 3.0]] * 3


# -- disagreement


def ones(*shape: int, dtype: str = "float32") -> Any:
    return np.ones(shape, dtype)


def of(call: str, *args: Any) -> Callable[[Ring], Awaitable[Any]]:
    return lambda ring: getattr(ring, call)(*copy.deepcopy(args))


MISMATCHES = {
    "op": (of("allreduce", ones(9), "sum"), of("allreduce", ones(9), "max"), "sum", "max"),
    "dtype": (of("allreduce", ones(9)), of("allreduce", ones(9, dtype="float64")), "float32", "float64"),
    "shape": (of("allreduce", ones(2, 8)), of("allreduce", ones(4, 4)), "[2, 8]", "[4, 4]"),
    "length": (of("allreduce", ones(9)), of("allreduce", ones(8)), "[9]", "[8]"),
    "emptiness": (of("allreduce", ones(0)), of("allreduce", ones(0, 1)), "[0]", "[0, 1]"),
    "bulk length": (of("allreduce", ones(BULK)), of("allreduce", ones(BULK + 1)), f"[{BULK}]", f"[{BULK + 1}]"),
    "bulk or not": (of("allreduce", ones(BULK)), of("allreduce", ones(1)), f"[{BULK}]", "[1]"),
    "not or bulk": (of("allreduce", ones(1)), of("allreduce", ones(BULK)), "[1]", f"[{BULK}]"),
    "bulk op": (of("allreduce", ones(BULK), "sum"), of("allreduce", ones(BULK), "min"), "sum", "min"),
    "count": (
        of("allreduce", [ones(9), ones(9)]),
        of("allreduce", [ones(9)]),
        "float32[9], float",
        "(mean, float32[9])",
    ),
    "name": (of("allreduce", {"w": ones(1)}), of("allreduce", {"v": ones(1)}), "w:", "v:"),
    "root": (of("broadcast", ones(9), 0), of("broadcast", ones(9), 1), "root 0", "root 1"),
    "bulk root": (of("broadcast", ones(BULK), 0), of("broadcast", ones(BULK), 1), "root 0", "root 1"),
    "gathered shape": (of("all_gather", ones(9)), of("all_gather", ones(8)), "[9]", "[8]"),
    "kind": (of("allreduce", ones(9)), of("barrier"), "allreduce", "barrier"),
    "kind of bulk": (of("reduce_scatter", ones(BULK)), of("all_gather", ones(BULK)), "scatter", "gather"),
    "bulk kind": (of("broadcast", ones(BULK)), of("barrier"), "broadcast", "barrier"),
}


async def ring_still_works(ring: Ring) -> None:
    for count in (3, BULK):
        assert (await ring.allreduce(np.full(count, ring.rank + 1.0, np.float32), op="sum")).tolist() == [
            ring.size * (ring.size + 1) / 2
        ] * count


@few_or_many_cores
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", MISMATCHES)
async def test_ranks_that_disagree_all_learn_of_both_sides_and_the_ring_works_on(
    name: str, size: int, cores: int
) -> None:
    most, one, most_say, one_says = MISMATCHES[name]

    async def act(ring: Ring) -> None:
        odd = ring.rank == size - 1
        error = await error_of((one if odd else most)(ring))
        assert isinstance(error, ringwide.CollectiveMismatch)
        ours, theirs = (one_says, most_say) if odd else (most_say, one_says)
        assert ours in error.ours
        assert theirs in error.theirs
        assert error.rank == ring.rank
        assert (error.other_rank != ring.rank) if odd else (error.other_rank == size - 1)
        assert error.ours in str(error)
        assert error.theirs in str(error)
        await ring_still_works(ring)

    await on_every_rank(size, act)


@few_or_many_cores
@pytest.mark.parametrize("odd", range(6))
async def test_nobody_disagrees_unnoticed(odd: int, cores: int) -> None:
    """Of six ranks some listen before they speak: once it was another algorithm's partner that they listened to."""

    async def act(ring: Ring) -> None:
        for other in (
            of("barrier"),
            of("broadcast", ones(3), 1),
            of("all_gather", ones(3)),
            of("allreduce", ones(BULK)),
        ):
            error = await error_of((other if ring.rank == odd else of("allreduce", ones(3)))(ring))
            assert isinstance(error, ringwide.CollectiveMismatch)

    await on_every_rank(6, act, collective_timeout_seconds=10)


@few_or_many_cores
@pytest.mark.parametrize("count", [5, BULK])
async def test_a_disagreement_leaves_every_tensor_as_it_was(count: int, cores: int) -> None:
    async def act(ring: Ring) -> None:
        mine = np.arange(count, dtype=np.float32) + ring.rank
        error = await error_of(ring.allreduce(mine, op="max" if ring.rank == 1 else "sum"))
        assert isinstance(error, ringwide.CollectiveMismatch)
        assert np.array_equal(mine, np.arange(count, dtype=np.float32) + ring.rank)

    await on_every_rank(3, act)


@few_or_many_cores
async def test_another_order_is_a_mismatch_of_each_that_is_out_of_order(cores: int) -> None:
    async def act(ring: Ring) -> None:
        calls = [of("allreduce", ones(4)), of("broadcast", ones(BULK)), of("barrier")]
        if ring.rank == 1:
            calls[:2] = reversed(calls[:2])
        outcomes = await asyncio.gather(*(call(ring) for call in calls), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ringwide.CollectiveMismatch] * 2 + [type(None)]
        await ring_still_works(ring)

    await on_every_rank(3, act)


async def test_what_is_wrong_here_is_said_here_and_the_ring_works_on() -> None:
    async def act(ring: Ring) -> None:
        locked = np.ones(3)
        locked.flags.writeable = False
        wrongs = [
            (ring.allreduce(ones(1), op="avg"), ValueError, "op 'avg' is not one of"),
            (ring.allreduce(locked), ValueError, "read-only"),
            (ring.allreduce("text"), TypeError, "the argument is a str"),
            (ring.broadcast(ones(1), root=2), ValueError, "root 2 is not a rank of this ring: ranks go from 0 to 1"),
            (ring.broadcast(ones(1), root=-1), ValueError, "root -1 is not a rank"),
            (ring.all_gather([ones(1)]), TypeError, "the argument is a list"),
            (ring.reduce_scatter({"w": ones(1)}), TypeError, "the argument is a dict"),
        ]
        wrongs += [
            (ring.allreduce(ones(1, dtype=dtype)), TypeError, f"the mean of {dtype} need not be an integer")
            for dtype in INTEGERS
        ]
        for call, kind, words in wrongs:
            error = await error_of(call)
            assert type(error) is kind
            assert words in str(error)
        await ring_still_works(ring)

    await on_every_rank(2, act)


async def test_a_root_may_broadcast_what_it_cannot_write() -> None:
    async def act(ring: Ring) -> list[float]:
        mine = np.full(3, ring.rank, np.float32)
        mine.flags.writeable = ring.rank != 0
        return (await ring.broadcast(mine, root=0)).tolist()

    assert await on_every_rank(2, act) == [[0.0] * 3] * 2


# -- giving up


@pytest.mark.parametrize("count", [5, BULK], ids=["small", "bulk"])
@few_or_many_cores
@pytest.mark.parametrize("size", [2, 3])
async def test_a_cancelled_call_is_cancelled_here_and_aborted_there(size: int, count: int, cores: int) -> None:
    cancelled = asyncio.Event()

    async def act(ring: Ring) -> None:
        mine = np.arange(count, dtype=np.float32) + ring.rank
        if ring.rank == 1:
            task = asyncio.create_task(ring.allreduce(mine))
            await turn_the_loop()
            task.cancel()
            assert isinstance(await error_of(task), asyncio.CancelledError)
            cancelled.set()
        else:
            await cancelled.wait()
            error = await error_of(ring.allreduce(mine))
            assert isinstance(error, ringwide.CollectiveAborted)
            assert (error.by, error.reason) == (1, "its task was cancelled")
            assert f"allreduce(mean, float32[{count}]): rank 1 gave up" in str(error)
        assert np.array_equal(mine, np.arange(count, dtype=np.float32) + ring.rank)
        await ring_still_works(ring)

    await on_every_rank(size, act)


async def turn_the_loop(turns: int = 10) -> None:
    """Long enough for a task to have started."""
    for _ in range(turns):
        await asyncio.sleep(0)


@every_algorithm
async def test_a_call_cancelled_in_the_middle_of_its_bytes_harms_nothing(algorithm: str) -> None:
    count = 4_000_000

    async def act(ring: Ring) -> None:
        mine = np.full(count, ring.rank, np.float32)
        before = ring.statistics().bytes_received
        task = asyncio.create_task(ring.allreduce(mine, op="sum"))
        if ring.rank == 1:
            while ring.statistics().bytes_received < before + 100_000:  # noqa: ASYNC110 - no event for some bytes
                await asyncio.sleep(0)
            task.cancel()
        error = await error_of(task)
        expected = asyncio.CancelledError if ring.rank == 1 else ringwide.CollectiveAborted
        assert isinstance(error, expected)
        assert (mine == ring.rank).all()
        mine[:] = -1  # it is ours again: what others still receive of it must not matter
        await ring_still_works(ring)

    await on_every_rank(3, act, algorithm=algorithm, segment_bytes="64KiB", buffer_bytes="64KiB")


@pytest.mark.parametrize("codec", [{}, {"codec": "int8", "allow_lossy": True, "error_feedback": True}])
@pytest.mark.parametrize("count", [100, 1_000_000])
async def test_a_call_cancelled_when_it_was_done_but_not_heard_of_harms_nothing(
    codec: dict[str, Any], count: int
) -> None:
    async def act(ring: Ring) -> tuple[list[float], object]:
        tensor = np.full(count, ring.rank + 1.0, np.float32)
        await ring.allreduce(np.ones(count, np.float32))
        before = ring.state_dict()
        task = asyncio.ensure_future(ring.allreduce(tensor))
        if ring.rank:
            await task
            return sorted(set(tensor.tolist())), None
        end = ring._engine.dispatcher._end

        def end_and_cancel(*arguments: Any) -> None:
            end(*arguments)
            task.cancel()

        ring._engine.dispatcher._end = end_and_cancel  # type: ignore[method-assign]
        assert isinstance(await error_of(task), asyncio.CancelledError)
        ring._engine.dispatcher._end = end  # type: ignore[method-assign]
        after = ring.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name]["error"], after[name]["error"]) for name in before)
        return sorted(set(tensor.tolist())), None

    (held, _), (mean, _) = await on_every_rank(2, act, **codec)
    assert held == [1.0]
    assert mean == pytest.approx([1.5], rel=0.01)


async def test_a_choice_that_fails_does_not_fail_the_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*arguments: Any) -> Any:
        raise MemoryError("no room to choose")

    monkeypatch.setattr(CodecPolicy, "_decisions", failing)

    async def act(ring: Ring) -> float:
        return float((await ring.allreduce(np.ones(1_000_000, np.float32)))[0])

    assert await on_every_rank(2, act, codec="auto") == [1.0, 1.0]
    assert "could not choose a codec" in caplog.text


async def test_a_call_cancelled_while_it_waits_for_the_window_is_still_one_of_the_calls() -> None:
    """Numbers are given in the order of the calls: the others must hear of one that was given up before its turn."""
    gathered, cancelled = 100, asyncio.Event()

    async def act(ring: Ring) -> None:
        if ring.rank == 1:
            await cancelled.wait()
        tasks = [asyncio.create_task(ring.allreduce(np.full(3, float(index)), op="sum")) for index in range(gathered)]
        await turn_the_loop()
        if ring.rank == 0:
            tasks[90].cancel()
            cancelled.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        expected = asyncio.CancelledError if ring.rank == 0 else ringwide.CollectiveAborted
        assert isinstance(outcomes.pop(90), expected)
        assert [list(outcome) for outcome in outcomes] == [[2.0 * i] * 3 for i in range(gathered) if i != 90]
        await ring_still_works(ring)

    await on_every_rank(2, act)


@few_or_many_cores
@pytest.mark.parametrize(("size", "absent", "count"), [(2, 1, 3), (5, 3, 3), (3, 0, 3), (3, 2, BULK)])
async def test_a_rank_that_never_calls_is_named_by_all_when_the_deadline_is_over(
    size: int, absent: int, count: int, cores: int
) -> None:
    """Also by those who wait for one that waits itself, and by the absent one when it comes at last."""
    all_know, know = asyncio.Event(), []

    async def act(ring: Ring) -> None:
        mine = np.ones(count, np.float32)
        if ring.rank == absent:
            await all_know.wait()
        error = await error_of(ring.allreduce(mine))
        assert isinstance(error, ringwide.CollectiveTimeout)
        assert error.waiting_for == (absent,)
        assert f"no progress for 0.8 s (collective_timeout_seconds), waiting for rank {absent}" in str(error)
        assert (mine == 1).all()
        know.append(ring.rank)
        if len(know) == ring.size - 1:
            all_know.set()
        if ring.rank != absent:
            await all_know.wait()
        await ring_still_works(ring)

    await on_every_rank(size, act, collective_timeout_seconds=0.8)


async def test_a_timeout_can_be_set_while_the_ring_is_there() -> None:
    rank_1_knows = asyncio.Event()

    async def act(ring: Ring) -> None:
        for seconds in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match="it must be more than 0, and finite"):
                ring.set_timeout(seconds)
        if ring.rank == 1:
            ring.set_timeout(0.3)
            message = await error_of(ring.receive(np.ones(3, np.float32), 0))
            collective = await error_of(ring.allreduce(np.ones(3, np.float32)))
            for error in (message, collective):
                assert isinstance(error, ringwide.CollectiveTimeout)
                assert "Timed out after no progress for 0.3 s" in str(error)
            rank_1_knows.set()
        else:
            await rank_1_knows.wait()
            assert isinstance(await error_of(ring.allreduce(np.ones(3, np.float32))), ringwide.CollectiveTimeout)
        await ring_still_works(ring)

    await on_every_rank(2, act, messages=True)


async def test_ranks_that_still_look_for_each_other_are_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 1 and 2 need longer than anybody may be silent to find each other; rank 0 has found both."""
    connect, seconds, tried_at = RingFormation._try_connect, 0.75, list[float]()

    async def hardly_connect(self: RingFormation, peer: int) -> socket.socket | None:
        if (self._rank, peer) == (2, 1):
            tried_at.append(time.monotonic())
            if tried_at[-1] < tried_at[0] + 1.5 * seconds:
                await asyncio.sleep(0.02)
                raise ConnectionRefusedError
        return await connect(self, peer)

    async def act(ring: Ring) -> None:
        await ring_still_works(ring)

    monkeypatch.setattr(RingFormation, "_try_connect", hardly_connect)
    monkeypatch.setattr("ringwide.bootstrap.form_ring._LONGEST_PAUSE", 0.02)
    await on_every_rank(3, act, suspect_after_seconds=seconds, collective_timeout_seconds=seconds)
    assert len(tried_at) > 2


async def test_a_rank_that_others_wait_for_is_named_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    warned = asyncio.Event()

    async def act(ring: Ring) -> None:
        if ring.rank == 2:
            await warned.wait()
        await ring.allreduce(np.ones(3))

    async def wait_for_the_line() -> None:
        while "collective 2 allreduce: waiting for rank 2 (" not in caplog.text:  # noqa: ASYNC110 - a line is no event
            await asyncio.sleep(0.01)
        warned.set()

    await asyncio.gather(on_every_rank(3, act, warn_after_seconds=0.3), wait_for_the_line())


# -- the end of a ring


@pytest.mark.parametrize("count", [5, BULK], ids=["small", "bulk"])
@few_or_many_cores
@pytest.mark.parametrize("size", [2, 3, 5])
async def test_a_rank_that_leaves_is_named_by_all_who_still_needed_it(size: int, count: int, cores: int) -> None:
    waiting, all_know, know = asyncio.Event(), asyncio.Event(), []

    async def act(ring: Ring) -> None:
        if ring.rank == 1:
            await waiting.wait()
            return
        mine = np.arange(count, dtype=np.float32)
        call = asyncio.create_task(ring.allreduce(mine))
        await turn_the_loop()
        waiting.set()
        for late in (call, ring.barrier()):
            error = await error_of(late)
            assert type(error) is ringwide.PeerLeft
            assert error.rank == 1
            assert str(error) == "rank 1 left the ring: it is done"
        assert np.array_equal(mine, np.arange(count, dtype=np.float32))
        know.append(ring.rank)
        if len(know) == size - 1:
            all_know.set()
        await all_know.wait()

    await on_every_rank(size, act, stay=False)


async def test_a_goodbye_says_why() -> None:
    async def act(ring: Ring) -> None:
        if ring.rank == 1:
            raise ZeroDivisionError("in the user's program")
        error = await error_of(ring.barrier())
        assert isinstance(error, ringwide.PeerLeft)
        assert error.reason == "it ended with ZeroDivisionError"

    with pytest.raises(ZeroDivisionError):
        await on_every_rank(2, act)


def cut_connections(ring: Ring, *peers: int) -> None:
    """What the kernel does to the connections of a process that dies."""
    for peer in peers or ring._engine.links:
        for lane in ring._engine.links[peer].lanes.values():
            lane.close()


@pytest.mark.parametrize("count", [5, BULK], ids=["small", "bulk"])
@few_or_many_cores
@pytest.mark.parametrize("size", [2, 3, 5])
async def test_a_peer_whose_connections_end_is_named_by_every_rank(size: int, count: int, cores: int) -> None:
    waiting, all_know, know = asyncio.Event(), asyncio.Event(), []

    async def act(ring: Ring) -> None:
        if ring.rank == 1:
            await waiting.wait()
            cut_connections(ring)
            await all_know.wait()
            return
        mine = np.arange(count, dtype=np.float32)
        call = asyncio.create_task(ring.allreduce(mine))
        await turn_the_loop()
        waiting.set()
        for late in (call, ring.barrier()):
            error = await error_of(late)
            assert type(error) is ringwide.PeerLost
            assert error.rank == 1
            assert "rank 1 is lost" in str(error)
        assert np.array_equal(mine, np.arange(count, dtype=np.float32))
        know.append(ring.rank)
        if len(know) == size - 1:
            all_know.set()
        await all_know.wait()

    await on_every_rank(size, act)


async def test_a_link_cut_between_two_ends_the_ring_for_all() -> None:
    async def act(ring: Ring) -> None:
        await ring.barrier()
        if ring.rank == 0:
            cut_connections(ring, 1)
            ring._engine.dispatcher.lost(ring._engine.links[1].lanes[0], ConnectionResetError("reset by the test"))
        mine = ones(5)
        error = await error_of(ring.allreduce(mine))
        assert type(error) is ringwide.PeerLost
        assert error.rank == {0: 1, 1: 0}.get(ring.rank, error.rank)
        assert error.rank in (0, 1)
        assert (mine == 1).all()

    await on_every_rank(3, act)


async def test_bytes_that_break_the_rules_end_the_ring_and_say_so() -> None:
    async def act(ring: Ring) -> None:
        await ring.barrier()
        if ring.rank == 1:
            ring._engine.links[0].lanes[0].socket.send(b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n")
        error = await error_of(ring.allreduce(ones(5)))
        assert isinstance(error, ringwide.RemoteProtocolError if ring.rank == 0 else ringwide.PeerLost)
        if ring.rank == 0:
            assert "rank 1" in str(error)
            assert "not a ringwide frame" in str(error)

    await on_every_rank(3, act)


async def test_a_ring_that_was_left_is_closed() -> None:
    rings: list[Ring] = []

    async def act(ring: Ring) -> None:
        await ring.barrier()
        rings.append(ring)

    await on_every_rank(2, act)
    for ring in rings:
        mine = ones(3)
        for call in (
            ring.allreduce(mine),
            ring.broadcast(mine),
            ring.all_gather(mine),
            ring.reduce_scatter(mine),
            ring.barrier(),
        ):
            error = await error_of(call)
            assert isinstance(error, ringwide.RingClosed)
            assert "async with ringwide.join" in str(error)
        assert ring.statistics().collectives >= 1
        assert "left" in repr(ring)


async def test_a_call_that_is_still_open_when_the_ring_is_left_ends_with_it() -> None:
    others_may_leave = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []

    async def act(ring: Ring) -> None:
        if ring.rank == 1:
            await others_may_leave.wait()
            return
        tasks.extend(asyncio.create_task(ring.allreduce(ones(count))) for count in [3, BULK] * 50)
        await turn_the_loop()
        asyncio.get_running_loop().call_soon(asyncio.create_task, see_them_end())

    async def see_them_end() -> None:
        for task in tasks:
            assert isinstance(await error_of(task), ringwide.RingClosed)
        others_may_leave.set()

    await on_every_rank(2, act, stay=False)


# -- bits


def hard_numbers(rank: int, count: int, dtype: str, seed: int) -> Any:
    """Any bits: NaNs of every payload, infinities, zeros of both signs, subnormals; whole tensors of zeros too."""
    chance = np.random.default_rng([rank, seed])
    bits = chance.integers(0, 256, size=count * np.dtype(dtype).itemsize, dtype=np.uint8).view(dtype).copy()
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], dtype)
    where = chance.random(count) < 0.6
    bits[where] = chance.choice(special[4:6] if seed % 2 else special, size=int(where.sum()))
    return bits


@pytest.mark.numbers
@pytest.mark.parametrize("half_precision", ["float32", "native"])
@every_algorithm
@pytest.mark.parametrize("size", [2, 4, 5])
async def test_every_rank_ends_with_the_same_bits(size: int, algorithm: str, half_precision: str) -> None:
    cases = [
        (dtype, op, count, seed)
        for dtype in ("float64", "float32", "float16")
        for op in ("sum", "mean", "min", "max", "prod")
        for seed, count in enumerate([1, 1, 3, 17, 64, 3001])
    ]

    async def bits(ring: Ring, dtype: str, op: str, count: int, seed: int) -> list[bytes]:
        array = hard_numbers(ring.rank, count, dtype, seed)
        results = [(await ring.allreduce(array, op)).tobytes()]
        if dtype == "float16":
            tensor = torch.from_numpy(hard_numbers(ring.rank, count, dtype, seed)).view(torch.bfloat16)
            results.append((await ring.allreduce(tensor, op)).view(torch.int16).numpy().tobytes())
        return results

    async def act(ring: Ring) -> list[list[bytes]]:
        return [await bits(ring, *case) for case in cases]

    by_rank = await on_every_rank(size, act, algorithm=algorithm, half_precision=half_precision, segment_bytes="16KiB")
    for results in by_rank[1:]:
        assert [place for place, result in enumerate(results) if result != by_rank[0][place]] == []


async def test_infinity_is_a_result_and_not_an_error() -> None:
    """Warnings are errors here, as they may be in a user's program."""

    async def act(ring: Ring) -> None:
        for dtype, huge in (("float64", 1.5e308), ("float32", 3e38), ("float16", 6e4)):
            for count in (3, BULK):
                array = np.full(count, huge, dtype)
                assert np.isinf(await ring.allreduce(array, op="sum")).all()

    await on_every_rank(2, act)


async def test_a_tree_adds_in_the_order_of_the_ranks() -> None:
    parts = [np.random.default_rng(rank).normal(size=1000).astype(np.float32) for rank in range(5)]
    in_order, backwards = (functools.reduce(np.add, some) for some in (parts, parts[::-1]))
    assert not np.array_equal(in_order, backwards), "the order must matter, or this proves nothing"

    async def act(ring: Ring) -> bytes:
        return (await ring.allreduce(parts[ring.rank].copy(), op="sum")).tobytes()

    assert await on_every_rank(5, act, algorithm="tree") == [in_order.tobytes()] * 5


@pytest.mark.parametrize("half_precision", ["float32", "native"])
async def test_half_precision_is_summed_as_asked(half_precision: str) -> None:
    parts = {
        dtype: [torch.from_numpy(np.random.default_rng(rank).normal(size=1000)).to(dtype) for rank in range(3)]
        for dtype in (torch.float16, torch.bfloat16)
    }
    native = {dtype: ((three[0] + three[1]) + three[2]) / 3 for dtype, three in parts.items()}
    wide = {
        dtype: (((three[0].float() + three[1].float()) + three[2].float()) / 3).to(dtype)
        for dtype, three in parts.items()
    }

    async def act(ring: Ring) -> None:
        for dtype, three in parts.items():
            assert not torch.equal(native[dtype], wide[dtype]), "the two must differ, or this proves nothing"
            result = await ring.allreduce(three[ring.rank].clone())
            assert torch.equal(result, (native if half_precision == "native" else wide)[dtype])

    await on_every_rank(3, act, half_precision=half_precision, algorithm="tree")


# -- what it tells


async def test_statistics_count_bytes_and_tell_what_the_kernel_granted() -> None:
    async def act(ring: Ring) -> None:
        before = ring.statistics()
        await ring.allreduce(np.ones(BULK, np.float32))
        after = ring.statistics()
        assert after.collectives == before.collectives + 1
        assert after.bytes_sent - before.bytes_sent >= 4 * BULK
        assert after.bytes_received - before.bytes_received >= 4 * BULK
        assert after.network_seconds > before.network_seconds
        assert after.buffer_bytes_asked == 65536
        for link in after.links:
            assert link.peer == 1 - ring.rank
            assert [lane.index for lane in link.lanes] == [0, 1, 2]
            assert {(lane.send_buffer_bytes, lane.receive_buffer_bytes) for lane in link.lanes} == {(65536, 65536)}

    await on_every_rank(2, act, buffer_bytes="64KiB", lanes=2, segment_bytes="64KiB")


async def test_a_tensor_is_striped_over_all_lanes() -> None:
    async def act(ring: Ring) -> None:
        await ring.allreduce(np.ones(BULK, np.float32))
        bulk = [lane.bytes_sent for link in ring.statistics().links for lane in link.lanes if lane.index]
        assert len(bulk) == 3
        assert min(bulk) > 4 * BULK / 3 * 0.8

    await on_every_rank(2, act, lanes=3, segment_bytes="16KiB")


async def test_the_rule_that_chooses_the_algorithm_is_visible() -> None:
    async def act(ring: Ring) -> list[str]:
        return [ring.algorithm_for(nbytes) for nbytes in (0, 1000, 1001)]

    assert await on_every_rank(1, act, tree_bytes=1000) == [["tree", "tree", "ring"]]
    assert await on_every_rank(1, act, algorithm="ring") == [["ring"] * 3]
    assert await on_every_rank(1, act, algorithm="tree") == [["tree"] * 3]


KIB = 1024


async def limit_of_the_tree(ring: Ring) -> int:
    """The largest bucket, in KiB, for which `auto` takes the tree."""
    for count in (3, BULK):
        assert (await ring.allreduce(np.full(count, 2.0), op="sum") == 2.0 * ring.size).all()
    return max(kib for kib in (0, 64, 256, 512, 1024) if ring.algorithm_for(kib * KIB) == "tree")


@pytest.mark.parametrize(
    ("cores", "size", "kib"), [(3, 4, 1024), (3, 3, 512), (1, 1, 512), (1, 2, 1024)], indirect=["cores"]
)
async def test_the_tree_carries_more_where_ranks_outnumber_cores(cores: int, size: int, kib: int) -> None:
    assert await on_every_rank(size, limit_of_the_tree) == [kib] * size


@pytest.mark.parametrize(
    ("settings_", "kib"),
    [({"same_host": "tcp"}, 256), ({"tree_bytes": "64KiB"}, 64), ({"codec": "lz4", "threshold_bytes": "64KiB"}, 64)],
)
async def test_a_limit_is_what_was_asked_for_and_what_lanes_carry(settings_: dict[str, Any], kib: int) -> None:
    assert await on_every_rank(3, limit_of_the_tree, **settings_) == [kib] * 3


@pytest.mark.parametrize("elsewhere", [0, 2])
async def test_one_rank_that_sees_another_machine_is_enough_for_all_to_send_less_by_the_tree(
    elsewhere: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = itertools.count()  # one rank after the other, in any order

    def as_one_sees_it(*, one_host: bool, **others: Any) -> Any:
        return notes(one_host=one_host and next(looked) != elsewhere, **others)

    monkeypatch.setattr("ringwide.runtime.core.notes", as_one_sees_it)
    assert await on_every_rank(3, limit_of_the_tree) == [64] * 3


@pytest.mark.parametrize(("own_cores", "kib"), [(3, 512), (2, 1024)])
async def test_ranks_pinned_to_cores_of_their_own_do_not_take_turns(
    own_cores: int, kib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {next(numbers) % own_cores})
    assert await on_every_rank(3, limit_of_the_tree) == [kib] * 3


async def test_rank_and_size() -> None:
    async def act(ring: Ring) -> tuple[int, int, str]:
        return ring.rank, ring.size, repr(ring)

    assert await on_every_rank(3, act) == [(rank, 3, f"<Ring rank {rank} of 3: joined>") for rank in range(3)]


async def test_a_rank_out_of_range_is_refused_before_anything_starts() -> None:
    with pytest.raises(ringwide.ConfigError, match="rank 2 is out of range"):
        async with ringwide.join(rank=2, peers=free_peers(2)):
            pass


@pytest.mark.parametrize("nothing", [[], {}, ()])
async def test_a_call_without_tensors_ends(nothing: Any) -> None:
    assert await on_every_rank(3, lambda ring: ring.allreduce(nothing)) == [nothing] * 3


async def test_a_rank_that_is_late_with_bulk_is_not_lost() -> None:
    """Its kernel's buffers are full meanwhile, and to ours that looks like death."""

    async def act(ring: ringwide.Ring) -> float:
        if ring.rank == 1:
            await asyncio.sleep(2.5)  # the time that passes is what is tested: longer than the user timeout
        return float((await ring.allreduce(np.ones(4_000_000), op="sum"))[-1])

    assert await on_every_rank(2, act, user_timeout_seconds=1, buffer_bytes="64KiB") == [2.0, 2.0]


async def test_many_calls_of_many_dtypes_may_be_ahead() -> None:
    dtypes = [np.float64, np.float32, np.int64, np.int32]
    first_has_called = asyncio.Event()

    async def act(ring: ringwide.Ring) -> bool:
        if ring.rank == 1:
            await first_has_called.wait()
        calls = [[np.full(250_000 // np.dtype(kind).itemsize, ring.rank, kind) for kind in dtypes] for _ in range(64)]
        tasks = [asyncio.create_task(ring.allreduce(arrays, op="sum")) for arrays in calls]
        for _ in range(300):  # turns of the loop, in which rank 1 receives what it has not asked for yet
            await asyncio.sleep(0)
        first_has_called.set()
        return all((array == 1).all() for arrays in await asyncio.gather(*tasks) for array in arrays)

    assert await on_every_rank(2, act) == [True, True]


async def test_a_port_in_use_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    peers = free_peers(2)
    host, port = peers[0].split(":")
    with socket.create_server((host, int(port))):
        assert isinstance(await error_of(joined(peers)), ringwide.AddressError)
    gc.collect()  # a future whose error nobody asked for speaks up when it is collected
    assert caplog.records == []


async def joined(peers: list[str]) -> None:
    async with ringwide.join(rank=0, peers=peers):
        pass


async def test_a_refused_call_uses_up_its_number() -> None:
    async def act(ring: Ring) -> tuple[str, float]:
        mine = np.full(2, ring.rank + 1.0)
        call = ring.refused(LookupError("not today")) if ring.rank == 0 else ring.barrier()
        error = await error_of(call)
        return f"{type(error).__name__}: {error}", float((await ring.allreduce(mine, "sum"))[0])

    (own, first), (others, second) = await on_every_rank(2, act)
    assert own == "LookupError: not today"
    assert "rank 0 gave up: not today" in others
    assert first == second == 3.0
