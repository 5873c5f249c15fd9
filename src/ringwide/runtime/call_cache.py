"""Cached plans of calls: a training loop makes the same few again and again.

`PlanCache` finds how any tensors are packed and carried. `SmallTensorCache` is the fast path for a small tensor that
lies flat: it is used where it lies, so nothing is packed, borrowed or written back. A tensor that differs in any way
from an earlier one takes the general way.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ringwide.collectives.call_kinds import Prepared
from ringwide.collectives.plan import REDUCING, CollectiveKind, Plan, Planner, Request
from ringwide.compression.codecs.base import Array
from ringwide.tensors.arithmetic import Arithmetic, arithmetic_of, carrier_of
from ringwide.tensors.bucket import TOO_SMALL_TO_POOL_BYTES, Bucket, BucketShape, Label
from ringwide.tensors.leaves import Signature, is_dense
from ringwide.tensors.packing import DtypeGroup, groups_of, has_carrier

T = TypeVar("T")
_REMEMBERED = 256


class CallPlan(NamedTuple):
    """The plan of a call, and how its tensors are packed."""

    plan: Plan
    groups: tuple[DtypeGroup, ...]


class PlanCache:
    """Those of one ring."""

    def __init__(self, planner: Planner, *, size: int, half_precision: str, encodes: bool) -> None:
        """`encodes`: a codec may carry the buckets."""
        self._planner, self._size, self._half_precision, self._encodes = planner, size, half_precision, encodes
        self._known: dict[tuple[CollectiveKind, str, int, Signature, str, bool], CallPlan] = {}

    def find(
        self,
        kind: CollectiveKind,
        signature: Signature,
        *,
        op: str = "",
        root: int = 0,
        bucket: str = "",
        gated: bool = False,
    ) -> CallPlan:
        """`gated`: for a named channel."""
        key = (kind, op, root, signature, bucket, gated)
        call_plan = self._known.get(key)
        if call_plan is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            call_plan = self._known[key] = self._make(kind, signature, op, root, bucket, gated)
        return call_plan

    def _make(
        self, kind: CollectiveKind, signature: Signature, op: str, root: int, bucket: str, gated: bool
    ) -> CallPlan:
        def arithmetic_for(dtype: str) -> Arithmetic:
            if kind in REDUCING:
                return arithmetic_of(dtype, op, self._size, half_precision=self._half_precision, widened=self._encodes)
            return Arithmetic(carrier_of(dtype), np.add, None)

        def label_of(dtype: str) -> Label:
            what = f"{kind.value} of {dtype}: {signature}"
            return Label(f"{bucket} ({dtype})" if bucket else what, what)

        groups = groups_of(signature, arithmetic_for, label_of=label_of)
        shapes = [group.shape for group in groups]
        if kind is CollectiveKind.ALL_GATHER:
            shapes = [BucketShape(shape.dtype, shape.count * self._size, shape.itemsize) for shape in shapes]
        where = f"root {root}" if kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE) else ""
        detail = ", ".join(filter(None, [op, where, bucket and f"bucket {bucket!r}", str(signature)]))
        return CallPlan(self._planner.plan(Request(kind, detail, tuple(shapes), root), gated=gated), groups)


_VIEWS = 8
"""Of so many tensors the view is kept as well, and they with it: torch takes long to make one."""


class _Known(NamedTuple):
    plan: Plan
    numbers: int
    arithmetic: Arithmetic
    label: Label | None


class InPlace(Prepared[T]):
    """A small tensor that is used where it lies. It has a constructor of its own, as every call counts here."""

    __slots__ = ()

    def __init__(self, plan: Plan, bucket: Bucket, value: T) -> None:
        self.plan, self.numbers, self.value = plan, (bucket,), value

    def written(self) -> Sequence[Array]:
        return [bucket.ours for bucket in self.numbers]


class SmallTensorCache:
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

    def find(self, value: T, op: str, bucket: str) -> InPlace[T] | None:
        """What a call brings that is like an earlier one. None: it goes the general way."""
        kind = type(value)
        if kind not in self._types:
            return None
        tensor: Any = value
        known = self._known.get((tensor.dtype, tensor.shape, op, bucket))
        if known is None:
            return None
        flat = _flat_array(tensor) if kind is np.ndarray else self._flat_tensor(tensor, known)
        if flat is None:
            return None
        plan, _, arithmetic, label = known
        saved = np.empty_like(flat)
        sums = arithmetic.combine, arithmetic.finish, arithmetic.weight
        return InPlace(plan, Bucket(flat, saved, *sums, label, None, arithmetic.halves), value)

    def _flat_tensor(self, tensor: Any, known: _Known) -> Array | None:
        if not is_dense(tensor.layout) or not tensor.is_contiguous():
            return None
        whose, where, flat = self._views.get(id(tensor), _NO_VIEW)
        lies_there = whose is tensor and where == tensor.data_ptr()
        if lies_there and flat.size == known.numbers and flat.dtype == known.arithmetic.carrier:
            return flat
        if not tensor.is_cpu or tensor.requires_grad or tensor.is_neg():
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
