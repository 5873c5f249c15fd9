"""Small tensors such as were reduced before: what was found out about them then is not found out again.

A small tensor that lies flat is used where it lies: nothing is packed, borrowed or written back, so it needs no bundle.
Whatever is different in any way from an earlier one goes the general way, and is told apart there.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ringwide.collective.plan import Plan
from ringwide.compression.codecs.base import Array
from ringwide.tensors.arithmetic import Arithmetic
from ringwide.tensors.bucket import Bucket, Label
from ringwide.tensors.buffer_pool import TOO_SMALL_TO_POOL_BYTES
from ringwide.tensors.leaves import is_dense
from ringwide.tensors.packing import DtypeGroup, has_carrier

_REMEMBERED = 256


_VIEWS = 8
"""Of so many tensors the view is kept as well, and they with it: torch takes long to make one."""


class _Known(NamedTuple):
    plan: Plan
    numbers: int
    arithmetic: Arithmetic
    label: Label | None


class Familiar:
    """What one ring has reduced before, as one tensor in one call."""

    def __init__(self) -> None:
        self._types: set[type] = set()
        self._known: dict[tuple[object, ...], _Known] = {}
        self._views: dict[int, tuple[Any, int, Array]] = {}  # tensor, where it lies, its memory as an array

    def learn(self, value: Any, op: str, bucket: str, plan: Plan, groups: Sequence[DtypeGroup]) -> None:
        """This call was made in the general way. `value`: whatever it was called with."""
        if type(value) not in self._types and not _is_single(value):
            return
        group = groups[0]
        if group.count * group.arithmetic.carrier.itemsize < TOO_SMALL_TO_POOL_BYTES and has_carrier(group):
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._types.add(type(value))
            self._known[value.dtype, value.shape, op, bucket] = _Known(plan, group.count, group.arithmetic, group.label)

    def find(self, value: Any, op: str, bucket: str) -> tuple[Plan, list[Bucket]] | None:
        """The plan of a call and what it brings. None: it goes the general way."""
        kind = type(value)
        if kind not in self._types:
            return None
        known = self._known.get((value.dtype, value.shape, op, bucket))
        if known is None:
            return None
        flat = _flat_array(value) if kind is np.ndarray else self._flat_tensor(value, known)
        if flat is None:
            return None
        plan, _, arithmetic, label = known
        saved = np.empty_like(flat)
        return plan, [Bucket(flat, saved, arithmetic.combine, arithmetic.finish, arithmetic.weight, label)]

    def _flat_tensor(self, tensor: Any, known: _Known) -> Array | None:
        if not is_dense(tensor.layout) or not tensor.is_contiguous():
            return None
        whose, where, flat = self._views.get(id(tensor), _NO_VIEW)
        lies_there = whose is tensor and where == tensor.data_ptr()
        if lies_there and flat.size == known.numbers and flat.dtype == known.arithmetic.carrier:
            return flat
        if not tensor.is_cpu or tensor.requires_grad:
            return None
        if len(self._views) >= _VIEWS:
            self._views.clear()
        flat = np.asarray(tensor.numpy()).reshape(-1)
        self._views[id(tensor)] = tensor, tensor.data_ptr(), flat
        return flat


_NO_VIEW: tuple[Any, int, Array] = None, 0, np.empty(0)


def _flat_array(array: Array) -> Array | None:
    flags = array.flags
    if not (flags.c_contiguous and flags.writeable):
        return None
    return array.reshape(-1)  # a view of our own: the caller's flags may change while the call is open


def _is_single(value: object) -> bool:
    """An array or a tensor, and not a subclass of either, of which one cannot know."""
    kind = type(value)
    return kind is np.ndarray or (kind.__module__, kind.__qualname__) == ("torch", "Tensor")
