"""From what callers have (tensors, arrays, lists, mappings) to buckets (flat arrays of one dtype), and back.

The only room below training that knows torch, and only if the caller has imported it: no torch module, no torch tensor.

A dtype group that is one contiguous array in this machine's memory is used where it lies, without a copy. Everything
else is copied into one flat bucket: several small tensors, strided ones, other devices, and half precision, which is
widened to float32 for summing, and narrowed by the owner of each total (`codec/halves.py`). Results of copies are
written back only by `Bundle.commit`, when all buckets are done. What is used where it lies has memory beside it, in
which the collective saves what it replaces. Either way, after an error the caller's tensors hold what they held before.
"""

import math
import sys
from collections.abc import Callable, Sequence
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from ringwide.claims import overlap_within
from ringwide.codec.codec import Array
from ringwide.codec.halves import NARROW, upper_halves
from ringwide.collective.feedback import Label
from ringwide.collective.numbers import Combiner, Numbers
from ringwide.collective.plan import BucketShape

HALVES = ("float16", "bfloat16")
FLOATS = ("float64", "float32", *HALVES)
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = FLOATS + INTEGERS
_CHARS = {name: np.dtype(name).char for name in DTYPES if name != "bfloat16"}


def _add(left: Array, right: Array, out: Array) -> None:
    """A sum of single numbers in place is a reduction to numpy, which swaps them: of two NaNs, the other would win."""
    np.add(left.copy() if out.size == 1 else left, right, out)


_UFUNCS: dict[str, Combiner] = {
    "sum": _add,
    "mean": _add,
    "min": lambda left, right, out: np.minimum(left, right, out=out),  # numpy deprecates these two without `out=`
    "max": lambda left, right, out: np.maximum(left, right, out=out),
    "prod": np.multiply,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "quotient": _add,
}
BITWISE = ("band", "bor", "bxor")
FOR_INTEGERS = (*BITWISE, "quotient")
"""The quotient is the sum divided by how many ranks there are, without the remainder: their mean, towards zero."""
OPERATIONS = tuple(op for op in _UFUNCS if op not in FOR_INTEGERS)
_quietly = np.errstate(all="ignore")
"""Infinity and NaN are results like others. A warning would end the connection wherever warnings are errors."""
TOO_SMALL_TO_SHELVE_BYTES = 128 * 1024
"""Below this the allocator is faster than looking for a free bucket."""


class Signature(NamedTuple):
    """All that ranks must have in common about what they bring."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        labels = [f"{name}: " for name in self.names] or [""] * len(self.dtypes)
        tensors = zip(labels, self.dtypes, self.shapes, strict=True)
        return ", ".join(f"{label}{dtype}{list(shape)}" for label, dtype, shape in tensors)


class Leaf(Protocol):
    """One tensor or array of the caller."""

    dtype: str
    shape: tuple[int, ...]

    def require_writable(self, name: str | int) -> None: ...

    def memory(self) -> Array | None:
        """The caller's memory as an array, whatever its strides. None: it is on another device."""
        ...

    def is_as_it_was(self) -> bool:
        """Has it the shape with which the call was made? Else the result has no place."""
        ...

    def lies_flat(self, carrier: np.dtype[Any]) -> Array | None:
        """The caller's own memory as a flat array of the carrier's dtype, if it is that already."""
        ...

    def load(self, flat: Array) -> None: ...

    def store(self, flat: Array) -> None: ...

    def like(self, flat: Array, shape: tuple[int, ...]) -> Any:
        """A new tensor or array of the caller's kind, with these numbers."""
        ...


class ArrayLeaf:
    """A numpy array."""

    __slots__ = ("_array", "dtype", "shape")

    def __init__(self, array: Array, name: str | int) -> None:
        self.dtype, self.shape = _dtype_name(array.dtype), array.shape
        if self.dtype not in DTYPES:
            raise TypeError(f"{_called(name)} has dtype {array.dtype}; ringwide carries {', '.join(DTYPES)}")
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{_called(name)} is a masked array, and its mask would be lost; pass .data or .filled(0)")
        # A view of our own: what becomes of the caller's flags and shape meanwhile does not matter to the result.
        self._array = array.view(np.ndarray)

    def require_writable(self, name: str | int) -> None:
        if not self._array.flags.writeable:
            raise ValueError(f"{_called(name)} is read-only, and the result is written into it; pass a copy")

    def memory(self) -> Array:
        return self._array

    def is_as_it_was(self) -> bool:
        return True

    def lies_flat(self, carrier: np.dtype[Any]) -> Array | None:
        if self._array.dtype == carrier and self._array.flags.c_contiguous:
            return self._array.reshape(-1)
        return None

    def load(self, flat: Array) -> None:
        flat.reshape(self.shape)[...] = self._array

    @_quietly
    def store(self, flat: Array) -> None:
        np.copyto(self._array, flat.reshape(self.shape), casting="same_kind")

    @_quietly
    def like(self, flat: Array, shape: tuple[int, ...]) -> Array:
        return flat.astype(self._array.dtype, copy=False).reshape(shape)


class TensorLeaf:
    """A torch tensor; on another device it is staged through the CPU (untested on CUDA: no such machine yet)."""

    __slots__ = ("_tensor", "dtype", "shape")

    def __init__(self, tensor: Any, name: str | int) -> None:
        self.dtype, self.shape = _dtype_name(tensor.dtype), tensor.shape
        if self.dtype not in DTYPES or not is_dense(tensor.layout):
            what = f"{_called(name)} is a {tensor.layout} tensor of {self.dtype}"
            raise TypeError(f"{what}; ringwide carries dense tensors of {', '.join(DTYPES)}")
        self._tensor = tensor.detach() if tensor.requires_grad else tensor

    def require_writable(self, name: str | int) -> None:
        strides = self._tensor.stride()
        if 0 in strides and any(stride == 0 < size - 1 for stride, size in zip(strides, self.shape, strict=True)):
            raise ValueError(
                f"{_called(name)} is an expanded tensor whose elements share memory; pass a copy (.contiguous())"
            )

    def memory(self) -> Array | None:
        tensor = self._tensor
        if not tensor.is_cpu or tensor.is_neg():
            return None
        array: Array = (tensor.view(_torch().int16) if self.dtype == "bfloat16" else tensor).numpy()
        return array

    def is_as_it_was(self) -> bool:
        return bool(self._tensor.shape == self.shape)

    def lies_flat(self, carrier: np.dtype[Any]) -> Array | None:
        tensor = self._tensor
        if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
            return None
        if self.dtype == "bfloat16":
            return tensor.view(_torch().int16).numpy().reshape(-1) if carrier == np.int16 else None
        if carrier.char != _CHARS[self.dtype]:
            return None
        array: Array = tensor.numpy()
        return array if array.ndim == 1 else array.reshape(-1)

    def load(self, flat: Array) -> None:
        self._as_tensor(flat, self.shape).copy_(self._tensor)

    def store(self, flat: Array) -> None:
        numbers = self._as_tensor(flat, self.shape)
        if self._tensor.is_inference():  # which mode holds is a matter of the thread, and this may be the loop's
            with _torch().inference_mode():
                self._tensor.copy_(numbers)
        else:
            self._tensor.copy_(numbers)

    def like(self, flat: Array, shape: tuple[int, ...]) -> Any:
        return self._as_tensor(flat, shape).to(dtype=self._tensor.dtype, device=self._tensor.device)

    def _as_tensor(self, flat: Array, shape: tuple[int, ...]) -> Any:
        """A torch view of a bucket's memory."""
        carried = _torch().from_numpy(flat)
        if flat.dtype == np.int16 and self.dtype == "bfloat16":
            carried = carried.view(_torch().bfloat16)
        return carried.view(shape)


def _torch() -> Any:
    return sys.modules["torch"]


@cache
def is_dense(layout: object) -> bool:
    """Of torch's layouts, is it the one with a place in memory for each element?"""
    return layout is _torch().strided


@cache
def _dtype_name(dtype: object) -> str:
    """Of torch and numpy alike. Bytes in another machine's order get a name that is none of ours, such as >f4."""
    return str(dtype).removeprefix("torch.")


def _called(name: str | int) -> str:
    return "the argument" if name == "" else f"tensor {name!r}"


def leaf_of(value: object, name: str | int = "") -> Leaf:
    """One tensor or array, or a `TypeError` that names what came."""
    leaf = _leaf_or_none(value, name)
    if leaf is None:
        raise TypeError(
            f"{_called(name)} is a {type(value).__module__}.{type(value).__qualname__}; expected a torch tensor, "
            "a numpy array, a list or tuple of them, or a mapping from names to them"
        )
    return leaf


def _leaf_or_none(value: object, name: str | int) -> Leaf | None:
    if isinstance(value, np.ndarray):
        return ArrayLeaf(value, name)
    torch = sys.modules.get("torch")
    return TensorLeaf(value, name) if torch is not None and isinstance(value, torch.Tensor) else None


def leaves_of(values: object) -> tuple[list[Leaf], Signature]:
    """The tensors in a fixed order: a mapping is read in the order of its sorted names, whatever its own order."""
    leaf = _leaf_or_none(values, "")
    if leaf is not None:
        return [leaf], Signature((), (leaf.dtype,), (leaf.shape,))
    names: tuple[str, ...] = ()
    if isinstance(values, (list, tuple)):
        leaves = [leaf_of(value, index) for index, value in enumerate(values)]
    elif isinstance(values, AnyMapping):
        names = _sorted_names(values)
        leaves = [leaf_of(values[name], name) for name in names]
    else:
        leaves = [leaf_of(values)]
    return leaves, Signature(names, tuple([leaf.dtype for leaf in leaves]), tuple([leaf.shape for leaf in leaves]))


def _sorted_names(values: AnyMapping[Any, object]) -> tuple[str, ...]:
    wrong = next((name for name in values if not isinstance(name, str)), None)
    if wrong is not None:
        raise TypeError(f"the mapping has the key {wrong!r}; names must be strings")
    return tuple(sorted(values))


class Shelf:
    """Buckets that are not in use. Fresh memory costs a page fault every 4 KiB, more than the network on a fast link.

    It never holds more than was once in use at the same time.
    """

    def __init__(self) -> None:
        self._idle: list[Array] = []
        self._in_use_bytes = 0
        self._peak_bytes = 0

    def take(self, count: int, dtype: np.dtype[Any]) -> Array:
        nbytes = count * dtype.itemsize
        if nbytes < TOO_SMALL_TO_SHELVE_BYTES:
            return np.empty(count, dtype)
        in_use_bytes = self._in_use_bytes + nbytes
        fitting = [memory for memory in self._idle if memory.nbytes >= nbytes]
        if fitting:
            best = min(fitting, key=lambda memory: memory.nbytes)
            self._remove(best)
            bucket = best[:nbytes].view(dtype)
        else:
            self._shrink(max(self._peak_bytes, in_use_bytes) - in_use_bytes)
            bucket = np.empty(count, dtype)  # if there is no memory, nothing was taken
            self._peak_bytes = max(self._peak_bytes, in_use_bytes)
        self._in_use_bytes = in_use_bytes
        return bucket

    def give_back(self, bucket: Array) -> None:
        if bucket.nbytes < TOO_SMALL_TO_SHELVE_BYTES:
            return
        self.drop(bucket)
        base = bucket if bucket.base is None else bucket.base
        self._idle.append(base.reshape(-1).view(np.uint8))
        self._shrink(max(0, self._peak_bytes - self._in_use_bytes))

    def drop(self, bucket: Array) -> None:
        """The bucket will not come back: a connection may still be writing into it."""
        if bucket.nbytes >= TOO_SMALL_TO_SHELVE_BYTES:
            self._in_use_bytes -= bucket.nbytes

    def _shrink(self, allowed_bytes: int) -> None:
        while self._idle and sum(memory.nbytes for memory in self._idle) > allowed_bytes:
            self._remove(min(self._idle, key=lambda memory: memory.nbytes))

    def _remove(self, memory: Array) -> None:
        self._idle = [idle for idle in self._idle if idle is not memory]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How numbers of one dtype are summed: the dtype they are carried in, and the two functions a collective needs."""

    carrier: np.dtype[Any]
    combine: Callable[[Array, Array, Array], object]
    finish: Callable[[Array], object] | None
    weight: float = 0.0
    """By what a sum of floats is divided, see `Numbers`."""
    narrow: Callable[[Array], object] | None = None
    """How a total becomes half precision, see `Numbers`."""


def arithmetic_of(dtype: str, op: str, size: int, *, half_precision: str) -> Arithmetic:
    """The rule for one dtype and operation. Half precision is summed in float32 unless `native` is asked for."""
    if op not in _UFUNCS:
        raise ValueError(f"op {op!r} is not one of {', '.join(_UFUNCS)}")
    if op == "mean" and dtype not in FLOATS:
        raise TypeError(f"the mean of {dtype} is not a {dtype}; use op='sum' and divide, or convert to a float dtype")
    if op in BITWISE and dtype not in INTEGERS:
        raise TypeError(f"op {op!r} combines the bits of integers, and these are {dtype}; use {', '.join(INTEGERS)}")
    if op == "quotient" and dtype not in INTEGERS:
        raise TypeError(f"op {op!r} divides integers, and these are {dtype}; use op='mean'")
    if dtype == "bfloat16" and half_precision == "native":
        return _native_bfloat16(op, size)
    narrow = NARROW.get(dtype) if half_precision == "float32" else None
    carrier = np.dtype(dtype if narrow is None else "float32")
    weight = {"sum": 1.0, "mean": float(size)}.get(op, 0.0) if dtype in FLOATS else 0.0
    combine = _quietly(_UFUNCS[op]) if dtype in FLOATS else _UFUNCS[op]
    return Arithmetic(carrier, combine, _finish(op, size, carrier), weight, narrow)


def _finish(op: str, size: int, carrier: np.dtype[Any]) -> Callable[[Array], object] | None:
    """What becomes of the sum of all ranks."""

    def divide_towards_zero(total: Array) -> None:
        wide = total.astype(np.int64)  # 200 ranks are no int8
        total[...] = (wide - np.fmod(wide, size)) // size

    if op == "mean":
        divisor = carrier.type(size)
        return _quietly(lambda total: np.divide(total, divisor, total))
    return divide_towards_zero if op == "quotient" else None


def _native_bfloat16(op: str, size: int) -> Arithmetic:
    """numpy has no bfloat16: its bits are carried as int16 and torch does the sums."""
    torch = _torch()
    function = {"sum": torch.add, "mean": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]

    def numbers(bits: Array) -> Any:
        return torch.from_numpy(bits if bits.flags.writeable else bits.copy()).view(torch.bfloat16)

    def combine(left: Array, right: Array, out: Array) -> None:
        function(numbers(left), numbers(right), out=numbers(out))

    def divide(total: Array) -> None:
        numbers(total).div_(size)

    return Arithmetic(np.dtype("int16"), combine, divide if op == "mean" else None)


def carrier_of(dtype: str) -> np.dtype[Any]:
    """The dtype in which numbers travel when nobody adds them."""
    return np.dtype("int16" if dtype == "bfloat16" else dtype)


def portable(array: Array) -> Any:
    """A copy for a checkpoint: a tensor where torch is loaded, since `torch.load` trusts tensors and not arrays."""
    torch = sys.modules.get("torch")
    return array.copy() if torch is None else torch.from_numpy(array.copy())


def array_of(value: object, name: str) -> Array:
    """A copy of what `portable` made, flat."""
    leaf = leaf_of(value, name)
    flat = np.empty(math.prod(leaf.shape), carrier_of(leaf.dtype))
    leaf.load(flat)
    return flat


class Piece(NamedTuple):
    """Where a leaf lies in its bucket."""

    leaf: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Group:
    """All leaves of one dtype: they share a bucket."""

    dtype: str
    arithmetic: Arithmetic
    pieces: tuple[Piece, ...]
    count: int
    label: Label | None = None

    def totals(self, bucket: Array) -> Array:
        """What a bucket holds in the end: half precision that was carried in float32 is there as bits."""
        return bucket if self.arithmetic.narrow is None else upper_halves(bucket, carrier_of(self.dtype))

    @property
    def shape(self) -> BucketShape:
        return BucketShape(self.dtype, self.count, self.arithmetic.carrier.itemsize)


def groups_of(
    signature: Signature, arithmetic_for: Callable[[str], Arithmetic], *, label_of: Callable[[str], Label] | None = None
) -> tuple[Group, ...]:
    """How tensors of this signature are packed, one group for each dtype in order of first appearance."""
    pieces: dict[str, list[Piece]] = {}
    for index, (dtype, shape) in enumerate(zip(signature.dtypes, signature.shapes, strict=True)):
        group = pieces.setdefault(dtype, [])
        start = group[-1].stop if group else 0
        group.append(Piece(index, start, start + math.prod(shape)))
    return tuple(
        Group(dtype, arithmetic_for(dtype), tuple(found), found[-1].stop, label_of(dtype) if label_of else None)
        for dtype, found in pieces.items()
    )


def has_carrier(group: Group) -> bool:
    """Is it carried in its own dtype, in numpy's eyes too?"""
    return group.arithmetic.carrier.char == _CHARS.get(group.dtype)


class Bundle:
    """Everything one call brought, as buckets. Run a collective over `numbers`, then commit, give back or discard."""

    __slots__ = ("_borrowed", "_copied", "_copies", "_leaves", "_shelf", "numbers")

    def __init__(self, leaves: Sequence[Leaf], groups: Sequence[Group], shelf: Shelf, *, copies: bool = False) -> None:
        self._leaves, self._shelf = leaves, shelf
        self._copies = copies or _must_copy(leaves, groups)
        self._copied: list[tuple[Group, Array]] = []  # what is not used where it lies
        self._borrowed: list[Array] = []
        try:
            self.numbers = [self._load(group) for group in groups]
        except BaseException:
            self.discard()
            raise

    def _load(self, group: Group) -> Numbers:
        arithmetic, pieces = group.arithmetic, group.pieces
        memory = self._shelf.take(group.count, arithmetic.carrier)
        self._borrowed.append(memory)
        in_place = len(pieces) == 1 and not self._copies
        ours = self._leaves[pieces[0].leaf].lies_flat(arithmetic.carrier) if in_place else None
        saved: Array | None = memory
        if ours is None:
            ours, saved = memory, None
            self._copied.append((group, memory))
            for leaf, start, stop in pieces:
                self._leaves[leaf].load(memory[start:stop])
        return Numbers(
            ours, saved, arithmetic.combine, arithmetic.finish, arithmetic.weight, group.label, arithmetic.narrow
        )

    def totals(self) -> Array:
        """Of the only bucket, as the caller's dtype, or what carries it."""
        ((group, memory),) = self._copied
        return group.totals(memory)

    def check(self) -> None:
        """Do the results of copies still fit where they belong?"""
        require_unchanged([self._leaves[leaf] for group, _ in self._copied for leaf, _, _ in group.pieces])

    def commit(self) -> None:
        """Write the results of copies into the caller's tensors."""
        for group, memory in self._copied:
            totals = group.totals(memory)
            for leaf, start, stop in group.pieces:
                self._leaves[leaf].store(totals[start:stop])

    def give_back(self) -> None:
        """The buckets are free again."""
        for memory in self._borrowed:
            self._shelf.give_back(memory)

    def discard(self) -> None:
        """After an error: this memory is not used again, whatever may still refer to it."""
        for memory in self._borrowed:
            self._shelf.drop(memory)


def _must_copy(leaves: Sequence[Leaf], groups: Sequence[Group]) -> bool:
    """Do tensors share memory, so that one of them, used where it lies, would change what another one brings?"""
    if len(groups) < 2:
        return False
    return overlap_within(memory_of(leaves))


def memory_of(leaves: Sequence[Leaf | None]) -> list[Array]:
    """Of those that lie in this machine's memory."""
    return [array for leaf in leaves if leaf is not None and (array := leaf.memory()) is not None]


def require_unchanged(leaves: Sequence[Leaf | None]) -> None:
    """Else a result has no place."""
    if not all(leaf is None or leaf.is_as_it_was() for leaf in leaves):
        raise RuntimeError("a tensor was given another shape while its call was open; keep it as it is until then")
