"""How calls with certain tensors are carried out. Remembered: a training loop asks for the same few again and again."""

from typing import NamedTuple

import numpy as np

from ringwide.collective.plan import REDUCING, Kind, Plan, Planner, Request
from ringwide.tensors.arithmetic import Arithmetic, arithmetic_of, carrier_of
from ringwide.tensors.bucket import BucketShape, Label
from ringwide.tensors.leaves import Signature
from ringwide.tensors.packing import DtypeGroup, groups_of

_REMEMBERED = 256


class Recipe(NamedTuple):
    """The plan of a call, and how its tensors are packed."""

    plan: Plan
    groups: tuple[DtypeGroup, ...]


class Recipes:
    """Those of one ring."""

    def __init__(self, planner: Planner, *, size: int, half_precision: str) -> None:
        self._planner, self._size, self._half_precision = planner, size, half_precision
        self._known: dict[tuple[Kind, str, int, Signature, str, bool], Recipe] = {}

    def find(
        self,
        kind: Kind,
        signature: Signature,
        *,
        op: str = "",
        root: int = 0,
        bucket: str = "",
        gated: bool = False,
    ) -> Recipe:
        """`gated`: for a named channel."""
        key = (kind, op, root, signature, bucket, gated)
        recipe = self._known.get(key)
        if recipe is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            recipe = self._known[key] = self._make(kind, signature, op, root, bucket, gated)
        return recipe

    def _make(self, kind: Kind, signature: Signature, op: str, root: int, bucket: str, gated: bool) -> Recipe:
        def arithmetic_for(dtype: str) -> Arithmetic:
            if kind in REDUCING:
                return arithmetic_of(dtype, op, self._size, half_precision=self._half_precision)
            return Arithmetic(carrier_of(dtype), np.add, None)

        def label_of(dtype: str) -> Label:
            what = f"{kind.value} of {dtype}: {signature}"
            return Label(f"{bucket} ({dtype})" if bucket else what, what)

        groups = groups_of(signature, arithmetic_for, label_of=label_of)
        shapes = [group.shape for group in groups]
        if kind is Kind.ALL_GATHER:
            shapes = [BucketShape(shape.dtype, shape.count * self._size, shape.itemsize) for shape in shapes]
        where = f"root {root}" if kind in (Kind.BROADCAST, Kind.REDUCE) else ""
        detail = ", ".join(filter(None, [op, where, bucket and f"bucket {bucket!r}", str(signature)]))
        return Recipe(self._planner.plan(Request(kind, detail, tuple(shapes), root), gated=gated), groups)
