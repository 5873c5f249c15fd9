"""From what callers have (tensors, arrays, lists, mappings) to buckets (flat arrays of one dtype), and back.

The only room below training that knows torch, and only if the caller has imported it: no torch module, no torch tensor.

A dtype group that is one contiguous array in this machine's memory is used where it lies, without a copy. Everything
else is copied into one flat bucket: several small tensors, strided ones, other devices, and half precision, which is
widened to float32 for summing. Results are written back only by `Bundle.commit`, when all buckets are done: after an
error the caller's tensors hold what they held before.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ringwide.collective.operation import Array, Numbers
from ringwide.collective.plan import BucketShape

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
HALVES = ("float16", "bfloat16")
_UFUNCS = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}
OPERATIONS = tuple(_UFUNCS)


class Leaf(Protocol):
    """One tensor or array of the caller."""

    dtype: str
    shape: tuple[int, ...]
    count: int

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

    def __init__(self, array: Array, name: str) -> None:
        self.dtype, self.shape, self.count = array.dtype.name, array.shape, array.size
        if self.dtype not in FLOATS + INTEGERS or not array.dtype.isnative:
            raise TypeError(f"{name} has dtype {array.dtype}; ringwide carries {', '.join(FLOATS + INTEGERS)}")
        self._array = array

    def require_writable(self, name: str) -> None:
        if not self._array.flags.writeable:
            raise ValueError(f"{name} is read-only, and the result is written into it; pass a copy")

    def lies_flat(self, carrier: np.dtype[Any]) -> Array | None:
        if self._array.dtype == carrier and self._array.flags.c_contiguous:
            return self._array.reshape(-1)
        return None

    def load(self, flat: Array) -> None:
        flat.reshape(self.shape)[...] = self._carried(flat)

    def store(self, flat: Array) -> None:
        np.copyto(self._carried(flat), flat.reshape(self.shape), casting="same_kind")

    def like(self, flat: Array, shape: tuple[int, ...]) -> Array:
        return flat.astype(self._array.dtype, copy=False).reshape(shape)

    def _carried(self, flat: Array) -> Array:
        return self._array


class TensorLeaf:
    """A torch tensor; on another device it is staged through the CPU (untested on CUDA: no such machine yet)."""

    def __init__(self, tensor: Any, name: str) -> None:
        self.dtype, self.shape, self.count = (
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            tensor.numel(),
        )
        if self.dtype not in FLOATS + INTEGERS or tensor.is_sparse or tensor.is_quantized:
            raise TypeError(
                f"{name} is a {tensor.layout} tensor of {self.dtype}; ringwide carries dense {', '.join(FLOATS + INTEGERS)}"
            )
        self._tensor = tensor.detach()

    def require_writable(self, name: str) -> None:
        if any(stride == 0 < size - 1 for stride, size in zip(self._tensor.stride(), self.shape, strict=True)):
            raise ValueError(f"{name} is an expanded tensor whose elements share memory; pass name.contiguous()")

    def lies_flat(self, carrier: np.dtype[Any]) -> Array | None:
        tensor = self._tensor
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            return None
        if self.dtype == "bfloat16":
            if carrier != np.int16:
                return None
            return tensor.reshape(-1).view(_torch().int16).numpy()  # type: ignore[no-any-return]
        return tensor.reshape(-1).numpy() if carrier.name == self.dtype else None

    def load(self, flat: Array) -> None:
        self._as_tensor(flat).copy_(self._tensor)

    def store(self, flat: Array) -> None:
        self._tensor.copy_(self._as_tensor(flat))

    def like(self, flat: Array, shape: tuple[int, ...]) -> Any:
        return self._as_tensor(flat, shape).to(dtype=self._tensor.dtype, device=self._tensor.device)

    def _as_tensor(self, flat: Array, shape: tuple[int, ...] | None = None) -> Any:
        """A torch view of a bucket's memory."""
        carried = _torch().from_numpy(flat)
        if flat.dtype == np.int16 and self.dtype == "bfloat16":
            carried = carried.view(_torch().bfloat16)
        return carried.view(self.shape if shape is None else shape)


def _torch() -> Any:
    return sys.modules["torch"]


def leaf_of(value: object, name: str) -> ArrayLeaf | TensorLeaf:
    """One tensor or array, or a `TypeError` that names what came."""
    if isinstance(value, np.ndarray):
        return ArrayLeaf(value, name)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return TensorLeaf(value, name)
    raise TypeError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}; expected a torch tensor, a numpy array, "
        "a list or tuple of them, or a mapping from names to them"
    )


def leaves_of(values: object) -> tuple[list[ArrayLeaf | TensorLeaf], list[str]]:
    """The tensors in a fixed order, with their names: a mapping is read in the order of its sorted names."""
    if isinstance(values, Mapping):
        wrong = next((name for name in values if not isinstance(name, str)), None)
        if wrong is not None:
            raise TypeError(f"the mapping has the key {wrong!r}; names must be strings")
        names = sorted(values)
        return [leaf_of(values[name], f"tensor {name!r}") for name in names], names
    if isinstance(values, list | tuple):
        return [leaf_of(value, f"tensor {index}") for index, value in enumerate(values)], []
    return [leaf_of(values, "the argument")], []


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
        self._in_use_bytes += nbytes
        fitting = [memory for memory in self._idle if memory.nbytes >= nbytes]
        if not fitting:
            self._peak_bytes = max(self._peak_bytes, self._in_use_bytes)
            self._shrink(self._peak_bytes - self._in_use_bytes)
            return np.empty(count, dtype)
        best = min(fitting, key=lambda memory: memory.nbytes)
        self._remove(best)
        return best[:nbytes].view(dtype)

    def give_back(self, bucket: Array) -> None:
        self.drop(bucket)
        base = bucket if bucket.base is None else bucket.base
        self._idle.append(base.reshape(-1).view(np.uint8))
        self._shrink(max(0, self._peak_bytes - self._in_use_bytes))

    def drop(self, bucket: Array) -> None:
        """The bucket will not come back: a connection may still be writing into it."""
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


def arithmetic_of(dtype: str, op: str, size: int, *, half_precision: str) -> Arithmetic:
    """The rule for one dtype and operation. Half precision is summed in float32 unless `native` is asked for."""
    if op not in _UFUNCS:
        raise ValueError(f"op {op!r} is not one of {', '.join(OPERATIONS)}")
    if op == "mean" and dtype not in FLOATS:
        raise TypeError(f"the mean of {dtype} is not a {dtype}; use op='sum' and divide, or convert to a float dtype")
    if dtype == "bfloat16" and half_precision == "native":
        return _native_bfloat16(op, size)
    carrier = np.dtype("float32" if dtype in HALVES and half_precision == "float32" else dtype)
    finish = None if op != "mean" else lambda total: np.divide(total, total.dtype.type(size), out=total)
    return Arithmetic(carrier, _UFUNCS[op], finish)


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


class Bundle:
    """Everything one call brought, as buckets. Take it, run a collective over `numbers`, then commit or discard."""

    def __init__(self, leaves: Sequence[ArrayLeaf | TensorLeaf], names: Sequence[str], shelf: Shelf) -> None:
        self._leaves, self._names, self._shelf = leaves, names, shelf
        self._groups: dict[str, list[ArrayLeaf | TensorLeaf]] = {}
        for leaf in leaves:
            self._groups.setdefault(leaf.dtype, []).append(leaf)
        self._taken: list[Array] = []
        self._stores: list[tuple[list[ArrayLeaf | TensorLeaf], Array | None, Array]] = []
        self.numbers: list[Numbers] = []

    @property
    def dtypes(self) -> list[str]:
        return list(self._groups)

    def require_writable(self) -> None:
        for index, leaf in enumerate(self._leaves):
            leaf.require_writable(f"tensor {self._names[index] if self._names else index}")

    def describe(self) -> str:
        """All that ranks must have in common, for the fingerprint and for people."""
        labels = [f"{name}: " for name in self._names] or [""] * len(self._leaves)
        return ", ".join(
            f"{label}{leaf.dtype}{list(leaf.shape)}" for label, leaf in zip(labels, self._leaves, strict=True)
        )

    def shapes(self) -> tuple[BucketShape, ...]:
        return tuple(
            BucketShape(dtype, numbers.work.size, numbers.work.itemsize)
            for dtype, numbers in zip(self._groups, self.numbers, strict=True)
        )

    def load(self, arithmetics: Mapping[str, Arithmetic]) -> None:
        """Make one bucket for each dtype."""
        for dtype, group in self._groups.items():
            self._load_group(group, arithmetics[dtype])

    def _load_group(self, group: list[ArrayLeaf | TensorLeaf], arithmetic: Arithmetic) -> None:
        flat = group[0].lies_flat(arithmetic.carrier) if len(group) == 1 else None
        work = self._shelf.take(sum(leaf.count for leaf in group), arithmetic.carrier)
        self._taken.append(work)
        if flat is None:
            for leaf, place in _cut(group, work):
                leaf.load(place)
        self._stores.append((group, flat, work))
        self.numbers.append(Numbers(work if flat is None else flat, work, arithmetic.combine, arithmetic.finish))

    def commit(self) -> None:
        """Write the results into the caller's tensors."""
        for group, flat, work in self._stores:
            if flat is not None:
                np.copyto(flat, work)
            else:
                for leaf, place in _cut(group, work):
                    leaf.store(place)
        self.give_back()

    def give_back(self) -> None:
        """The buckets are free again."""
        while self._taken:
            self._shelf.give_back(self._taken.pop())

    def discard(self) -> None:
        """After an error. A connection may still be landing bytes in a bucket, so nobody else may get that memory."""
        while self._taken:
            self._shelf.drop(self._taken.pop())


def _cut(group: Sequence[ArrayLeaf | TensorLeaf], flat: Array) -> list[tuple[ArrayLeaf | TensorLeaf, Array]]:
    """Each leaf with its piece of the bucket."""
    pieces, start = [], 0
    for leaf in group:
        pieces.append((leaf, flat[start : start + leaf.count]))
        start += leaf.count
    return pieces


def bundle_of(values: object, shelf: Shelf) -> Bundle:
    leaves, names = leaves_of(values)
    return Bundle(leaves, names, shelf)
