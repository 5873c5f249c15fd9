"""From what callers have to buckets and back, without a ring: `reduced` plays the part of the network."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ringwide.tensors.arithmetic import FLOATS, HALVES, INTEGERS, OPERATIONS, arithmetic_of, carrier_of
from ringwide.tensors.bucket import Bucket, BufferPool
from ringwide.tensors.leaves import leaf_of, leaves_of
from ringwide.tensors.packing import Bundle, groups_of

DTYPES = FLOATS + INTEGERS
NUMPY_DTYPES = tuple(dtype for dtype in DTYPES if dtype != "bfloat16")


def tensor_of(values: Any, dtype: str) -> torch.Tensor:
    return torch.tensor(values, dtype=getattr(torch, dtype))


def array_of(values: Any, dtype: str) -> Any:
    return np.array(values, dtype=dtype)


KINDS = [pytest.param(tensor_of, dtype, id=f"torch-{dtype}") for dtype in DTYPES] + [
    pytest.param(array_of, dtype, id=f"numpy-{dtype}") for dtype in NUMPY_DTYPES
]


def loaded(
    values: object,
    op: str = "sum",
    *,
    size: int = 2,
    half: str = "float32",
    widened: bool = False,
    copies: bool = False,
) -> Bundle:
    leaves, signature = leaves_of(values)
    groups = groups_of(signature, lambda dtype: arithmetic_of(dtype, op, size, half_precision=half, widened=widened))
    return Bundle(leaves, groups, BufferPool(), copies=copies)


def reduced(bundle: Bundle) -> Bundle:
    """What a ring of two does when the other rank brings the same numbers."""
    for numbers in bundle.numbers:
        total = memory_for_sum(numbers)
        numbers.combine(numbers.ours.copy(), numbers.ours, total)
        numbers.complete(total, numbers.ours)
    return bundle


def memory_for_sum(numbers: Bucket) -> Any:
    return numbers.ours if numbers.halves is None else np.empty(numbers.ours.size, np.float32)


def listed(value: Any) -> Any:
    return value.tolist()


@pytest.mark.parametrize(("make", "dtype"), KINDS)
def test_every_dtype_goes_in_is_summed_and_comes_back(make: Any, dtype: str) -> None:
    value = make([[1, 2, 3], [4, 5, 6]], dtype)
    bundle = reduced(loaded(value, copies=True))
    assert listed(value) == [[1, 2, 3], [4, 5, 6]], "a copy is not written back before the commit"
    bundle.commit()
    assert listed(value) == [[2, 4, 6], [8, 10, 12]]


@pytest.mark.parametrize(("make", "dtype"), KINDS)
def test_what_is_used_where_it_lies_is_there_at_the_commit(make: Any, dtype: str) -> None:
    value = make([[1, 2, 3], [4, 5, 6]], dtype)
    reduced(loaded(value)).commit()
    assert listed(value) == [[2, 4, 6], [8, 10, 12]]


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize(("make", "dtype"), KINDS)
def test_every_operation(make: Any, dtype: str, op: str) -> None:
    if op == "mean" and dtype in INTEGERS:
        return  # has a test of its own
    value = make([1, 2, 5], dtype)
    reduced(loaded(value, op)).commit()
    assert listed(value) == {"sum": [2, 4, 10], "prod": [1, 4, 25]}.get(op, [1, 2, 5])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_mean_of_integers_is_refused(dtype: str) -> None:
    with pytest.raises(TypeError, match=f"the mean of {dtype} need not be an integer; use op='sum'"):
        arithmetic_of(dtype, "mean", 2, half_precision="float32")


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("size", [3, 200])
def test_the_quotient_of_integers_is_rounded_towards_zero(dtype: str, size: int) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    sums = [number for number in (least, -7, -6, -1, 0, 1, 2, 3, 7, most) if number >= least]
    total = np.array(sums, dtype)
    finish = arithmetic_of(dtype, "quotient", size, half_precision="float32").finish
    assert finish is not None
    finish(total)
    assert total.tolist() == [abs(number) // size * (-1 if number < 0 else 1) for number in sums]


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_quotient_of_floats_is_refused(dtype: str) -> None:
    with pytest.raises(TypeError, match=f"op 'quotient' divides integers, and these are {dtype}; use op='mean'"):
        arithmetic_of(dtype, "quotient", 2, half_precision="native")


def test_an_unknown_operation_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="op 'avg' is not one of sum, mean, min, max, prod"):
        arithmetic_of("float32", "avg", 2, half_precision="float32")


# -- what may be passed


def mixed(container: type) -> Any:
    members = {
        "a": torch.tensor([1.0, 2.0]),
        "b": np.array([[3, 4]], dtype=np.int64),
        "c": torch.tensor(5.0),
        "d": np.array([], dtype=np.int64),
        "e": torch.tensor([6.0], dtype=torch.bfloat16),
    }
    return container(members) if issubclass(container, Mapping) else container(members.values())


@pytest.mark.parametrize("container", [list, tuple, dict, MappingProxyType])
def test_containers_that_mix_dtypes_and_kinds_make_one_bucket_for_each_dtype(container: Any) -> None:
    values = mixed(dict) if container is MappingProxyType else mixed(container)
    values = MappingProxyType(values) if container is MappingProxyType else values
    bundle = loaded(values)
    assert [(numbers.ours.dtype.name, numbers.ours.size) for numbers in bundle.numbers] == [
        ("float32", 3),
        ("int64", 2),
        ("int16", 1),  # words of bfloat16
    ]
    reduced(bundle).commit()
    members = list(values.values()) if isinstance(values, Mapping) else list(values)
    assert [listed(member) for member in members] == [[2, 4], [[6, 8]], 10, [], [12]]


def test_a_mapping_is_read_by_sorted_name_so_its_order_does_not_matter() -> None:
    one = {"weight": np.ones(2, np.float32), "bias": np.ones(1, np.float32)}
    other = dict(reversed(one.items()))
    assert str(leaves_of(one)[1]) == str(leaves_of(other)[1]) == "bias: float32[1], weight: float32[2]"
    assert [numbers.ours.tolist() for numbers in loaded({"b": np.array([2.0]), "a": np.array([1.0])}).numbers] == [
        [1.0, 2.0]
    ]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (3.5, "the argument is a float"),
        (None, "the argument is a NoneType"),
        ("text", "the argument is a str"),
        ({1, 2}, "the argument is a set"),
        (np.float32(1), "the argument is a numpy.float32"),
        ([np.ones(1), [np.ones(1)]], "tensor 1 is a list"),
        ({"w": np.ones(1), "b": 2}, "tensor 'b' is a int"),
        ({"w": np.ones(1), 7: np.ones(1)}, "the mapping has the key 7; names must be strings"),
        ((x for x in ()), "the argument is a generator"),
        (np.ones(1, np.complex64), "the argument has dtype complex64; ringwide carries float64"),
        (np.ones(1, bool), "the argument has dtype bool"),
        (np.ones(1, ">f4"), "the argument has dtype >f4"),
        (np.array(["a"]), "the argument has dtype <U1"),
        (torch.ones(1, dtype=torch.complex64), "the argument is a torch.strided tensor of complex64"),
        (torch.ones(1, dtype=torch.bool), "the argument is a torch.strided tensor of bool"),
        ([torch.eye(2).to_sparse()], "tensor 0 is a torch.sparse_coo tensor of float32"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) > 4 else "",
)
def test_anything_else_is_a_type_error_that_names_what_came(value: object, named: str) -> None:
    with pytest.raises(TypeError) as caught:
        leaves_of(value)
    assert named in str(caught.value)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_compressed_sparse_tensor_is_refused_too() -> None:
    with pytest.raises(TypeError, match=r"torch.sparse_csr tensor of float32; ringwide carries"):
        leaves_of(torch.eye(2).to_sparse_csr())


# -- shapes and memory


def strided(make: Any) -> Any:
    return make(np.arange(12.0).reshape(3, 4).tolist(), "float32")[:, ::2]


@pytest.mark.parametrize("make", [tensor_of, array_of], ids=["torch", "numpy"])
@pytest.mark.parametrize(
    "view",
    [
        lambda make: strided(make),
        lambda make: make([[1, 2], [3, 4]], "float32").T,
        lambda make: make(7, "float32"),
        lambda make: make([], "float32"),
        lambda make: make([[], []], "float32"),
        lambda make: make([[[1]], [[2]]], "float32"),
    ],
    ids=["strided", "transposed", "0-d", "empty", "2x0", "3-d"],
)
def test_any_shape_is_reduced_in_place(make: Any, view: Any) -> None:
    value = view(make)
    before = np.array(listed(value))
    reduced(loaded(value)).commit()
    assert np.array_equal(np.array(listed(value)), 2 * before)


def test_a_strided_view_leaves_its_neighbours_alone() -> None:
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = base * [2, 1, 2, 1]
    reduced(loaded(base[:, ::2])).commit()
    assert base.tolist() == expected.tolist()


def test_no_tensors_at_all_make_no_buckets() -> None:
    for nothing in ([], (), {}):
        bundle = loaded(nothing)
        assert bundle.numbers == []
        bundle.commit()


def test_tensors_that_require_grad_are_reduced_and_stay_leaves() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    reduced(loaded([parameter, torch.ones(2, requires_grad=True)])).commit()
    reduced(loaded(parameter)).commit()
    assert parameter.tolist() == [4, 4, 4]
    assert parameter.is_leaf
    assert parameter.requires_grad
    assert parameter.grad is None


def test_what_cannot_be_written_is_refused_by_name() -> None:
    locked = np.ones(3)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="tensor 'it' is read-only"):
        leaf_of(locked).require_writable("it")
    with pytest.raises(ValueError, match="tensor 'it' is an expanded tensor whose elements share memory"):
        leaf_of(torch.ones(1).expand(3)).require_writable("it")
    for fine in (np.ones(3), torch.ones(1).expand(1), torch.ones(2, 1), torch.ones(0, 3)):
        leaf_of(fine).require_writable("it")


def test_what_is_only_read_need_not_be_writable() -> None:
    locked = np.arange(3.0)
    locked.flags.writeable = False
    assert reduced(loaded(locked, copies=True)).numbers[0].ours.tolist() == [0, 2, 4]
    assert reduced(loaded(torch.tensor([2.0]).expand(3), copies=True)).numbers[0].ours.tolist() == [4, 4, 4]


@pytest.mark.parametrize("values", [np.arange(1000.0), [np.arange(1000.0)], {"w": np.arange(1000.0)}])
def test_one_contiguous_array_is_used_where_it_lies(values: Any) -> None:
    array = (
        values
        if isinstance(values, np.ndarray)
        else values[next(iter(values))]
        if isinstance(values, dict)
        else values[0]
    )
    assert np.shares_memory(loaded(values).numbers[0].ours, array)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in HALVES])
def test_one_contiguous_tensor_is_used_where_it_lies(dtype: str) -> None:
    tensor = torch.zeros(10, 10, dtype=getattr(torch, dtype), requires_grad=dtype in FLOATS)
    numbers = loaded(tensor).numbers[0]
    assert numbers.ours.__array_interface__["data"][0] == tensor.data_ptr()
    assert numbers.saved is not None, "what the caller holds is replaced, so it must be saved"
    assert not np.shares_memory(numbers.ours, numbers.saved)


def test_what_does_not_lie_flat_alone_is_copied() -> None:
    one, other = np.ones(4), np.ones(4)
    for values, widened in (([one, other], False), (one[::2], False), (one.astype(np.float16), True)):
        numbers = loaded(values, widened=widened).numbers[0]
        assert not np.shares_memory(numbers.ours, one)
        assert numbers.saved is None, "a copy needs no copy"


def test_a_group_of_its_own_is_used_where_it_lies_even_beside_others() -> None:
    lone = np.ones(4, np.int64)
    bundle = loaded([np.ones(1), lone, np.ones(1)])
    assert not np.shares_memory(bundle.numbers[0].ours, lone)
    assert np.shares_memory(bundle.numbers[1].ours, lone)


def test_copies_that_are_discarded_leave_the_callers_tensors_as_they_were() -> None:
    """Its collective puts back what is used in place: see tests/collectives/test_bucket_operation_snapshot.py."""
    values = [np.arange(3.0), torch.arange(3.0), torch.arange(4.0)[::2], torch.ones(2, dtype=torch.bfloat16)]
    reduced(loaded(values, copies=True)).discard()
    assert [listed(value) for value in values] == [[0, 1, 2], [0, 1, 2], [0, 2], [1, 1]]


# -- precision


def test_half_precision_is_summed_in_float32_unless_native_is_asked() -> None:
    for dtype in HALVES:
        assert arithmetic_of(dtype, "sum", 2, half_precision="float32").sum_itemsize == 4
        assert arithmetic_of(dtype, "sum", 2, half_precision="native").sum_itemsize == 2


def test_half_precision_is_used_where_it_lies_unless_a_codec_needs_it_wider() -> None:
    for half in (np.ones(4, np.float16), torch.ones(4, dtype=torch.bfloat16)):
        (alone,), (widened,) = loaded(half).numbers, loaded(half, widened=True).numbers
        assert (alone.ours.itemsize, widened.ours.dtype) == (2, np.float32)
        assert alone.saved is not None
        assert widened.saved is None


def total_of(parts: list[torch.Tensor], op: str, half: str) -> torch.Tensor:
    """All parts combined one after the other, as one rank would."""
    bundles = [loaded(part, op, size=len(parts), half=half) for part in parts]
    first = bundles[0].numbers[0]
    value, total = first.ours, memory_for_sum(first)
    for bundle in bundles[1:]:
        first.combine(value, bundle.numbers[0].ours, total)
        value = total
    first.complete(total, first.ours)
    bundles[0].commit()
    return parts[0]


@pytest.mark.parametrize("dtype", HALVES)
def test_float32_sums_keep_what_native_sums_round_away(dtype: str) -> None:
    step = {"float16": 2048.0, "bfloat16": 256.0}[dtype]  # beyond it, + 1 is lost in that dtype
    parts = lambda: [tensor_of([step], dtype), tensor_of([1.0], dtype), tensor_of([1.0], dtype)]  # noqa: E731
    assert total_of(parts(), "sum", "float32").tolist() == [step + 2]
    assert total_of(parts(), "sum", "native").tolist() == [step]


@pytest.mark.parametrize("op", OPERATIONS)
def test_native_bfloat16_does_what_torch_does(op: str) -> None:
    left, right = torch.randn(100).bfloat16(), torch.randn(100).bfloat16()
    expected = {
        "sum": left + right,
        "mean": (left + right) / 2,
        "min": torch.minimum(left, right),
        "max": torch.maximum(left, right),
        "prod": left * right,
    }[op]
    assert torch.equal(total_of([left.clone(), right.clone()], op, "native"), expected)


def test_native_bfloat16_is_used_where_it_lies_and_accepts_read_only_arrivals() -> None:
    tensor = torch.tensor([1.5, 2.5], dtype=torch.bfloat16)
    numbers = loaded(tensor, half="native").numbers[0]
    assert numbers.ours.__array_interface__["data"][0] == tensor.data_ptr()
    arrival = np.frombuffer(numbers.ours.tobytes(), numbers.ours.dtype)
    numbers.combine(arrival, numbers.ours, numbers.ours)
    assert tensor.tolist() == [3.0, 5.0]


@pytest.mark.parametrize("make", [tensor_of, array_of], ids=["torch", "numpy"])
def test_overflow_is_infinity_and_not_a_warning(make: Any) -> None:
    """A warning inside a callback of the event loop would end the connection wherever warnings are errors."""
    for dtype, huge in (("float64", 1.5e308), ("float32", 3e38), ("float16", 6e4)):
        value = make([huge, -huge], dtype)
        reduced(loaded(value)).commit()
        assert listed(value) == [np.inf, -np.inf]
    for op, pair in (("sum", (np.inf, -np.inf)), ("prod", (np.inf, 0.0))):
        left, right = (np.array([x], np.float32) for x in pair)
        arithmetic_of("float32", op, 2, half_precision="float32").combine(left, right, left)
        assert np.isnan(left[0])


# -- results that are new


@pytest.mark.parametrize(("make", "dtype"), KINDS)
def test_a_result_is_of_the_callers_kind(make: Any, dtype: str) -> None:
    value = make([1, 2], dtype)
    flat = np.empty(4, carrier_of(dtype))
    leaf = leaf_of(value)
    leaf.load(flat[:2])
    leaf.load(flat[2:])
    like = leaf.like(flat, (2, 2))
    assert (type(like), like.dtype, listed(like)) == (type(value), value.dtype, [[1, 2], [1, 2]])


# -- the pool

F32 = np.dtype("float32")
COUNT = 100_000  # small buckets are left to the allocator


def test_a_bucket_that_came_back_is_used_again() -> None:
    pool = BufferPool()
    first = pool.take(COUNT, F32)
    pool.give_back(first)
    for count, dtype in ((COUNT, F32), (COUNT - 7, F32), (COUNT // 2, np.dtype("int64"))):
        again = pool.take(count, dtype)
        assert (again.size, again.dtype) == (count, dtype)
        assert np.shares_memory(again, first)
        pool.give_back(again)


def test_a_bucket_that_was_dropped_is_never_used_again() -> None:
    pool = BufferPool()
    first = pool.take(COUNT, F32)
    pool.drop(first)
    assert not np.shares_memory(pool.take(COUNT, F32), first)


def test_two_buckets_in_use_never_share_memory() -> None:
    pool = BufferPool()
    pool.give_back(pool.take(COUNT, F32))
    assert not np.shares_memory(pool.take(COUNT, F32), pool.take(COUNT, F32))


def test_a_discarded_bundle_does_not_give_its_memory_to_the_next() -> None:
    pool = BufferPool()
    leaves, signature = leaves_of(np.zeros(COUNT, np.float32))
    groups = groups_of(signature, lambda dtype: arithmetic_of(dtype, "sum", 2, half_precision="native"))
    for end, reused in ((Bundle.discard, False), (Bundle.give_back, True)):
        first = Bundle(leaves, groups, pool)
        end(first)
        second = Bundle(leaves, groups, pool)
        assert np.shares_memory(first.numbers[0].saved, second.numbers[0].saved) == reused
        second.discard()


def idle_bytes(pool: BufferPool) -> int:
    return sum(memory.nbytes for memory in pool._idle)


@given(st.lists(st.tuples(st.integers(0, 4 * COUNT), st.integers(0, 3)), max_size=30))
def test_the_pool_never_holds_more_than_was_once_in_use(calls: list[tuple[int, int]]) -> None:
    pool, taken, peak = BufferPool(), [], 0
    for count, returned in calls:
        taken.append(pool.take(count, F32))
        peak = max(peak, sum(bucket.nbytes for bucket in taken))
        assert not any(np.shares_memory(taken[-1], other) for other in taken[:-1])
        for _ in range(min(returned, len(taken))):
            pool.give_back(taken.pop(0))
        assert idle_bytes(pool) <= peak


def test_without_memory_nothing_counts_as_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the pool would believe in a larger peak than there was, and hold too much for ever."""
    pool, large = BufferPool(), 100_000
    tensors = [np.ones(large, np.float32), np.ones(large, np.float64)]
    leaves, signature = leaves_of(tensors)
    groups = groups_of(signature, lambda dtype: arithmetic_of(dtype, "sum", 2, half_precision="float32"))
    empty = np.empty

    def no_memory_for_doubles(count: int, dtype: np.dtype[Any]) -> Any:
        if dtype == np.float64:
            raise MemoryError("no memory")
        return empty(count, dtype)

    monkeypatch.setattr(np, "empty", no_memory_for_doubles)
    with pytest.raises(MemoryError):
        Bundle(leaves, groups, pool)
    assert (pool._in_use_bytes, idle_bytes(pool)) == (0, 0)
    assert pool._peak_bytes == 4 * large


def test_a_tensor_of_inference_mode_is_written_outside_of_it() -> None:
    with torch.inference_mode():
        tensor = torch.zeros(2, 3).t()
    leaf_of(tensor).store(np.arange(6, dtype=np.float32))
    assert tensor.tolist() == [[0, 1], [2, 3], [4, 5]]
