"""The numbers of a simulated call: what each rank brings, what must come out, and whose memory it is when."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from ringwide.collectives.plan import CollectiveKind
from ringwide.compression.codecs.base import Array
from ringwide.simulator.calls import ORDERED, REDUCING, CodecSettings, SimulatedCall
from ringwide.tensors.arithmetic import Arithmetic, arithmetic_of
from ringwide.tensors.bucket import Bucket, Label

_RUBBISH = 77
_POOLED = 1 << 16
_CHANCE = np.random.default_rng(0)
_POOLS = {  # to draw from them is much faster than to draw anew for every call
    "any": _CHANCE.normal(size=_POOLED),
    "small": _CHANCE.integers(1, 10, size=_POOLED),
    "tiny": _CHANCE.integers(1, 3, size=_POOLED),
}
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


@cache
def _arithmetic(dtype: str, op: str, size: int) -> Arithmetic:
    if op == ORDERED:
        return Arithmetic(np.dtype(dtype), _ordered, None)
    return arithmetic_of(dtype, op, size, half_precision="float32")


class CallNumbers:
    """What all ranks bring to one call, and what it must give.

    Small integers, so that every sum is exact and lossless codecs find something to do; where a codec may lose
    something, numbers of which it does.
    """

    def __init__(self, call: SimulatedCall, size: int, codec_jobs: CodecSettings, seed: int) -> None:
        self.call, self.size = call, size
        self.may_lose = [codec_jobs.may_lose(call, bucket) for bucket in range(len(call.buckets))]
        self.given = [self._given(bucket, seed) for bucket in range(len(call.buckets))]
        self._totals = [self._total(bucket) for bucket in range(len(call.buckets))]

    def _given(self, bucket: int, seed: int) -> Array:
        dtype, count = self.call.buckets[bucket]
        pool = _POOLS["any" if self.may_lose[bucket] else "tiny" if self.call.op == "prod" else "small"]
        numbers = self.size * count
        first = (seed * 7919 + bucket * 613) % (len(pool) - numbers)
        return pool[first : first + numbers].astype(dtype).reshape(self.size, count)

    def total(self, bucket: int) -> Array | None:
        """What must be in a bucket in the end; None: only known to be the same everywhere."""
        return self._totals[bucket]

    def _total(self, bucket: int) -> Array | None:
        call, given = self.call, self.given[bucket]
        if self.may_lose[bucket]:
            return None
        total: Array
        match call.kind:
            case CollectiveKind.BROADCAST:
                total = given[call.root]
            case CollectiveKind.ALL_GATHER:
                total = given.reshape(self.size, self.size, -1).diagonal().T.reshape(-1)  # from each rank its share
            case _:
                return None if call.op == ORDERED else _TOTALS[call.op](given)
        return total


class SimulatedMemory:
    """One rank's buckets in one call, from its begin until they are the caller's again."""

    def __init__(self, material: CallNumbers, rank: int, *, saves: bool) -> None:
        self._material, self._rank = material, rank
        self._saves = (
            saves and material.call.kind is not CollectiveKind.ALL_GATHER
        )  # which always brings memory of its own
        self.numbers = [self._numbers(bucket) for bucket in range(len(material.given))]
        if material.call.kind in (CollectiveKind.BROADCAST, CollectiveKind.BARRIER):
            nothing = np.empty(0, np.uint8)
            self.numbers.append(Bucket(nothing, None, np.add))

    def _numbers(self, bucket: int) -> Bucket:
        material = self._material
        dtype, count = material.call.buckets[bucket]
        arithmetic = _arithmetic(dtype, material.call.op, material.size)
        ours = material.given[bucket][self._rank].copy()
        saved = np.full(count, _RUBBISH, arithmetic.carrier) if self._saves else None
        weight = arithmetic.weight if material.call.kind in REDUCING else 0.0
        what = f"{material.call.kind.value} {material.call.op} of {material.call.buckets}, bucket {bucket}"
        return Bucket(ours, saved, arithmetic.combine, arithmetic.finish, weight, Label(what, what))

    def results(self) -> list[tuple[Array, Array | None]]:
        """What this rank got, and what it should have got."""
        material, rank = self._material, self._rank
        if material.call.kind is CollectiveKind.BROADCAST and rank == material.call.root:
            return []
        pairs: list[tuple[Array, Array | None]] = []
        for bucket in range(len(material.given)):
            got, total = self.numbers[bucket].ours, material.total(bucket)
            share = self._share(got.size)
            pairs.append((got[share], None if total is None else total[share]))
        return pairs

    def losses(self) -> Iterator[tuple[str, int, slice, Array]]:
        """Of buckets that a codec may change: name, elements, this rank's share, what was brought less what came."""
        for bucket, numbers in enumerate(self.numbers):
            if bucket < len(self._material.given) and self._material.may_lose[bucket]:
                assert numbers.label is not None
                share = self._share(numbers.ours.size)
                brought = self._material.given[bucket][:, share].sum(axis=0, dtype=np.float64)
                missing = brought - numbers.weight * numbers.ours[share].astype(np.float64)
                yield numbers.label.name, numbers.ours.size, share, missing

    def _share(self, count: int) -> slice:
        if self._material.call.kind is not CollectiveKind.REDUCE_SCATTER:
            return slice(count)
        size = self._material.size
        return slice(count * self._rank // size, count * (self._rank + 1) // size)

    def is_intact(self) -> bool:
        """The caller's numbers are what they were."""
        return not self._saves or all(
            np.array_equal(numbers.ours, given[self._rank])
            for numbers, given in zip(self.numbers, self._material.given, strict=False)
        )

    def spoil(self) -> None:
        """The caller uses the memory for something else, at once."""
        for numbers in self.numbers:
            numbers.ours.fill(_RUBBISH)

    def was_left_alone(self) -> bool:
        """Since then nobody has written to it."""
        return all(bool((numbers.ours == _RUBBISH).all()) for numbers in self.numbers)


def bits(results: list[tuple[Array, Any]]) -> bytes:
    return b"".join(got.tobytes() for got, _ in results)
