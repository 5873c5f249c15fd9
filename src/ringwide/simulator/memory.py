"""The numbers of a simulated call: what each rank brings, what must come out, and whose memory it is when."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ringwide.buckets import Arithmetic, arithmetic_of
from ringwide.codec.codec import Array
from ringwide.collective.numbers import Numbers
from ringwide.collective.plan import Kind
from ringwide.simulator.scenario import ORDERED, Call

_RUBBISH = 77
_TOTALS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda given: given.sum(axis=0, dtype=given.dtype),
    "mean": lambda given: given.sum(axis=0, dtype=given.dtype) / given.dtype.type(len(given)),
    "min": lambda given: given.min(axis=0),
    "max": lambda given: given.max(axis=0),
    "prod": lambda given: given.prod(axis=0, dtype=given.dtype),
}


def _ordered(left: Array, right: Array, out: Array) -> None:
    """Neither commutative nor associative: the result tells who was added to whom, and in which order."""
    out[...] = left * 3 + right


def _arithmetic(dtype: str, op: str, size: int) -> Arithmetic:
    if op == ORDERED:
        return Arithmetic(np.dtype(dtype), _ordered, None)
    return arithmetic_of(dtype, op, size, half_precision="float32")


class Material:
    """What all ranks bring to one call, and what it must give. Small integers, so that every sum is exact."""

    def __init__(self, call: Call, size: int, seed: list[int]) -> None:
        self.call, self.size = call, size
        chance = np.random.default_rng(seed)
        highest = 3 if call.op == "prod" else 10
        self.given: list[Array] = [
            chance.integers(1, highest, size=(size, count)).astype(dtype) for dtype, count in call.buckets
        ]

    def total(self, bucket: int) -> Array | None:
        """What must be in a bucket in the end; None: only known to be the same everywhere."""
        call, given = self.call, self.given[bucket]
        total: Array
        match call.kind:
            case Kind.BROADCAST:
                total = given[call.root]
            case Kind.ALL_GATHER:
                total = given.reshape(self.size, self.size, -1).diagonal().T.reshape(-1)  # from each rank its share
            case _:
                return None if call.op == ORDERED else _TOTALS[call.op](given)
        return total


class Memory:
    """One rank's buckets in one call, from its begin until they are the caller's again."""

    def __init__(self, material: Material, rank: int, *, apart: bool) -> None:
        self._material, self._rank = material, rank
        self._apart = apart and material.call.kind is not Kind.ALL_GATHER  # which always works in place
        self.numbers = [self._numbers(bucket) for bucket in range(len(material.given))]
        if material.call.kind in (Kind.BROADCAST, Kind.BARRIER):
            nothing = np.empty(0, np.uint8)
            self.numbers.append(Numbers(nothing, nothing, np.add))

    def _numbers(self, bucket: int) -> Numbers:
        material = self._material
        dtype, count = material.call.buckets[bucket]
        arithmetic = _arithmetic(dtype, material.call.op, material.size)
        ours = material.given[bucket][self._rank].copy()
        work = np.full(count, _RUBBISH, arithmetic.carrier) if self._apart else ours
        return Numbers(ours, work, arithmetic.combine, arithmetic.finish)

    def results(self) -> list[tuple[Array, Array | None]]:
        """What this rank got, and what it should have got."""
        material, rank = self._material, self._rank
        if material.call.kind is Kind.BROADCAST and rank == material.call.root:
            return []
        pairs: list[tuple[Array, Array | None]] = []
        for bucket in range(len(material.given)):
            work, total = self.numbers[bucket].work, material.total(bucket)
            share = self._share(work.size)
            pairs.append((work[share], None if total is None else total[share]))
        return pairs

    def _share(self, count: int) -> slice:
        if self._material.call.kind is not Kind.REDUCE_SCATTER:
            return slice(count)
        size = self._material.size
        return slice(count * self._rank // size, count * (self._rank + 1) // size)

    def is_intact(self) -> bool:
        """The caller's numbers are what they were."""
        return not self._apart or all(
            np.array_equal(numbers.ours, given[self._rank])
            for numbers, given in zip(self.numbers, self._material.given, strict=False)
        )

    def spoil(self) -> None:
        """The caller uses the memory for something else, at once."""
        for numbers in self.numbers:
            numbers.ours.fill(_RUBBISH)
            numbers.work.fill(_RUBBISH)


def bits(results: list[tuple[Array, Any]]) -> bytes:
    return b"".join(got.tobytes() for got, _ in results)
