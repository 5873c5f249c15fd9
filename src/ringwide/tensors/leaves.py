"""Leaves: one interface to torch tensors and numpy arrays, however the caller has nested them.

torch is used only if the caller has imported it: without the module there can be no tensor.
"""

import math
import sys
from collections.abc import Mapping as AnyMapping
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.tensors.arithmetic import CHARS, DTYPES, carrier_of, loaded_torch, no_float_warnings


class Signature(NamedTuple):
    """Names, dtypes and shapes of the tensors of a call, which must be equal on all ranks."""

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
        """The caller's memory as an array, with any strides. None: it is on another device."""
        ...

    def shape_is_unchanged(self) -> bool:
        """Whether it still has the shape with which the call was made. Otherwise the result does not fit."""
        ...

    def flat_view(self, carrier: np.dtype[Any]) -> Array | None:
        """The caller's own memory as a flat array of the carrier's dtype. None: it needs a copy."""
        ...

    def load(self, flat: Array) -> None:
        """Copy the numbers into `flat`."""
        ...

    def store(self, flat: Array) -> None:
        """Copy the numbers from `flat` into the caller's memory."""
        ...

    def like(self, flat: Array, shape: tuple[int, ...]) -> Any:
        """A new tensor or array of the caller's kind, with these numbers."""
        ...


class ArrayLeaf:
    """A numpy array."""

    __slots__ = ("_array", "dtype", "shape")

    def __init__(self, array: Array, name: str | int) -> None:
        self.dtype, self.shape = _dtype_name(array.dtype), array.shape
        if self.dtype not in DTYPES:
            raise TypeError(f"{_described(name)} has dtype {array.dtype}; ringwide carries {', '.join(DTYPES)}")
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(
                f"{_described(name)} is a masked array, and its mask would be lost; pass .data or .filled(0)"
            )
        # A view of our own, so that later changes of the caller's flags and shape do not affect the result.
        self._array = array.view(np.ndarray)

    def require_writable(self, name: str | int) -> None:
        if not self._array.flags.writeable:
            raise ValueError(f"{_described(name)} is read-only, and the result is written into it; pass a copy")

    def memory(self) -> Array:
        return self._array

    def shape_is_unchanged(self) -> bool:
        return True

    def flat_view(self, carrier: np.dtype[Any]) -> Array | None:
        if self._array.dtype == carrier and self._array.flags.c_contiguous:
            return self._array.reshape(-1)
        return None

    def load(self, flat: Array) -> None:
        flat.reshape(self.shape)[...] = self._array

    @no_float_warnings
    def store(self, flat: Array) -> None:
        np.copyto(self._array, flat.reshape(self.shape), casting="same_kind")

    @no_float_warnings
    def like(self, flat: Array, shape: tuple[int, ...]) -> Array:
        return flat.astype(self._array.dtype, copy=False).reshape(shape)


class TensorLeaf:
    """A torch tensor. One on another device is staged through the CPU (not tested on CUDA yet)."""

    __slots__ = ("_tensor", "dtype", "shape")

    def __init__(self, tensor: Any, name: str | int) -> None:
        self.dtype, self.shape = _dtype_name(tensor.dtype), tensor.shape
        if self.dtype not in DTYPES or not is_dense(tensor.layout):
            what = f"{_described(name)} is a {tensor.layout} tensor of {self.dtype}"
            raise TypeError(f"{what}; ringwide carries dense tensors of {', '.join(DTYPES)}")
        self._tensor = tensor.detach() if tensor.requires_grad else tensor

    def require_writable(self, name: str | int) -> None:
        strides = self._tensor.stride()
        if 0 in strides and any(stride == 0 < size - 1 for stride, size in zip(strides, self.shape, strict=True)):
            raise ValueError(
                f"{_described(name)} is an expanded tensor whose elements share memory; pass a copy (.contiguous())"
            )

    def memory(self) -> Array | None:
        tensor = self._tensor
        if not tensor.is_cpu or tensor.is_neg():
            return None
        array: Array = (tensor.view(loaded_torch().int16) if self.dtype == "bfloat16" else tensor).numpy()
        return array

    def shape_is_unchanged(self) -> bool:
        return bool(self._tensor.shape == self.shape)

    def flat_view(self, carrier: np.dtype[Any]) -> Array | None:
        tensor = self._tensor
        if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
            return None
        if self.dtype == "bfloat16":
            return tensor.view(loaded_torch().int16).numpy().reshape(-1) if carrier == np.int16 else None
        if carrier.char != CHARS[self.dtype]:
            return None
        array: Array = tensor.numpy()
        return array if array.ndim == 1 else array.reshape(-1)

    def load(self, flat: Array) -> None:
        self._as_tensor(flat, self.shape).copy_(self._tensor)

    def store(self, flat: Array) -> None:
        numbers = self._as_tensor(flat, self.shape)
        if self._tensor.is_inference():  # the mode belongs to a thread, and this may be the thread of the loop
            with loaded_torch().inference_mode():
                self._tensor.copy_(numbers)
        else:
            self._tensor.copy_(numbers)

    def like(self, flat: Array, shape: tuple[int, ...]) -> Any:
        return self._as_tensor(flat, shape).to(dtype=self._tensor.dtype, device=self._tensor.device)

    def _as_tensor(self, flat: Array, shape: tuple[int, ...]) -> Any:
        """A torch view of a bucket's memory."""
        carried = loaded_torch().from_numpy(flat)
        if flat.dtype == np.int16 and self.dtype == "bfloat16":
            carried = carried.view(loaded_torch().bfloat16)
        return carried.view(shape)


@cache
def is_dense(layout: object) -> bool:
    """Whether this torch layout has memory for every element."""
    return layout is loaded_torch().strided


@cache
def _dtype_name(dtype: object) -> str:
    """Name of a torch or numpy dtype. Foreign byte orders give names that are not in `DTYPES`, such as >f4."""
    return str(dtype).removeprefix("torch.")


def _described(name: str | int) -> str:
    return "the argument" if name == "" else f"tensor {name!r}"


def leaf_of(value: object, name: str | int = "") -> Leaf:
    """The leaf of one tensor or array, or a `TypeError` that names what came."""
    leaf = _leaf_or_none(value, name)
    if leaf is None:
        raise TypeError(f"{_described(name)} is a {_type_name(value)}; expected a torch tensor or a numpy array")
    return leaf


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _leaf_or_none(value: object, name: str | int) -> Leaf | None:
    if isinstance(value, np.ndarray):
        return ArrayLeaf(value, name)
    torch = sys.modules.get("torch")
    return TensorLeaf(value, name) if torch is not None and isinstance(value, torch.Tensor) else None


def leaves_of(values: object) -> tuple[list[Leaf], Signature]:
    """The tensors in a fixed order. A mapping is read in the order of its sorted names."""
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
        raise TypeError(
            f"the argument is a {_type_name(values)}; expected a torch tensor, a numpy array, a list or tuple of them, "
            "or a mapping from names to them"
        )
    return leaves, Signature(names, tuple([leaf.dtype for leaf in leaves]), tuple([leaf.shape for leaf in leaves]))


def _sorted_names(values: AnyMapping[Any, object]) -> tuple[str, ...]:
    wrong = next((name for name in values if not isinstance(name, str)), None)
    if wrong is not None:
        raise TypeError(f"the mapping has the key {wrong!r}; names must be strings")
    return tuple(sorted(values))


def portable(array: Array) -> Any:
    """A copy for a checkpoint: a tensor if torch is loaded, since `torch.load` trusts tensors but not arrays."""
    torch = sys.modules.get("torch")
    return array.copy() if torch is None else torch.from_numpy(array.copy())


def array_of(value: object, name: str) -> Array:
    """A flat copy of what `portable` returned."""
    leaf = leaf_of(value, name)
    flat = np.empty(math.prod(leaf.shape), carrier_of(leaf.dtype))
    leaf.load(flat)
    return flat


def memory_of(leaves: Sequence[Leaf | None]) -> list[Array]:
    """Memory of the leaves that lie on the CPU."""
    return [array for leaf in leaves if leaf is not None and (array := leaf.memory()) is not None]


def require_unchanged(leaves: Sequence[Leaf | None]) -> None:
    """Refuse a tensor whose shape was changed during the call: its result does not fit any more."""
    if not all(leaf is None or leaf.shape_is_unchanged() for leaf in leaves):
        raise RuntimeError(
            "a tensor was given another shape while its call was open; keep its shape until the call is done"
        )
