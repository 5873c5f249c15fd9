"""Calls of a simulated life: the collectives and their codec settings, drawn at random, and their numbers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from random import Random
from typing import Any

import numpy as np

from ringwide.collectives.plan import CollectiveKind, Request
from ringwide.compression.codecs import registry
from ringwide.compression.codecs.base import Array, Codec
from ringwide.tensors.arithmetic import Arithmetic, arithmetic_of
from ringwide.tensors.bucket import Bucket, BucketShape, Label

ORDERED = "ordered"
"""Operation whose result depends on the order of the ranks: used only to check that all have equal bits."""

_REDUCTIONS = ("sum", "sum", "mean", "min", "max", "prod", ORDERED)
_INTEGERS = ("int64", "int32", "uint8")
_FLOATS = ("float64", "float32")
_HALVES = ("float16",)
REDUCING = (CollectiveKind.ALLREDUCE, CollectiveKind.REDUCE_SCATTER)
_ODDS_OF_KINDS = (
    *[CollectiveKind.ALLREDUCE] * 4,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.BROADCAST,
    CollectiveKind.BARRIER,
)
LARGE = 5
"""Rings of this size and more have fewer calls and fewer numbers per rank, as they take longest to simulate."""


@dataclass(frozen=True)
class SimulatedCall:
    """Collective that every rank calls."""

    kind: CollectiveKind
    op: str
    buckets: tuple[tuple[str, int], ...]  # dtype and number of elements of each
    root: int
    awaited: bool  # the caller awaits it before the next call

    @cached_property
    def request(self) -> Request:
        tensors = ", ".join(f"{dtype}[{count}]" for dtype, count in self.buckets)
        lead = f"root {self.root}" if self.kind is CollectiveKind.BROADCAST else self.op
        shapes = tuple(
            BucketShape(dtype, count, _arithmetic(self.kind, dtype, self.op, 1).sum_itemsize)
            for dtype, count in self.buckets
        )
        return Request(self.kind, f"{lead}, {tensors}", shapes, self.root)


@dataclass(frozen=True, slots=True)
class CodecSettings:
    """Codec settings, as in `RingConfig`."""

    codec: str = "none"
    shuffle: bool = False
    lossy: bool = False  # lossy codecs are allowed
    threshold_bytes: int = 0
    feedback: bool = False

    @property
    def encodes(self) -> bool:
        return self.codec != "none"

    def codecs(self) -> list[Codec]:
        if self.codec == "auto":
            return list(registry.AUTO)
        return [registry.make(self.codec, shuffle=self.shuffle, fraction=0.2 if self.codec == "topk" else None)]

    def may_lose(self, call: SimulatedCall, bucket: int) -> bool:
        """Whether a codec may change this bucket: only sums of floats."""
        dtype, _ = call.buckets[bucket]
        return self.lossy and call.kind in REDUCING and call.op in ("sum", "mean") and dtype in _FLOATS


_RAW = CodecSettings()
_LOSSLESS = (
    CodecSettings("lz4"),
    CodecSettings("lz4", shuffle=True),
    CodecSettings("lz4-frame"),
    CodecSettings("zlib"),
)
_LOSSY = tuple(CodecSettings(name, lossy=True) for name in registry.LOSSY)
_AUTO = (CodecSettings("auto"), CodecSettings("auto", lossy=True))
_ODDS_OF_SETTINGS = (*[_RAW] * 40, *_LOSSLESS * 2, *_LOSSY * 2, *_AUTO)


def draw_codec_settings(rng: Random) -> CodecSettings:
    codec_settings = rng.choice(_ODDS_OF_SETTINGS)
    if codec_settings is _RAW:
        return codec_settings
    return replace(
        codec_settings, threshold_bytes=rng.choice((0, 0, 32)), feedback=codec_settings.lossy and rng.random() < 0.7
    )


def draw_calls(rng: Random, size: int, codec_settings: CodecSettings) -> tuple[SimulatedCall, ...]:
    """Calls of a life. For error feedback and `auto` one call is repeated, as each affects the next."""
    if codec_settings.codec == "auto" or (codec_settings.feedback and rng.random() < 0.5):
        call = draw_call(
            rng,
            size,
            codec_settings,
            (CollectiveKind.ALLREDUCE, CollectiveKind.ALLREDUCE, CollectiveKind.REDUCE_SCATTER),
        )
        repeated = rng.randint(5, 9) if codec_settings.codec == "auto" else 3
        return (call,) * repeated
    return tuple(
        draw_call(rng, size, codec_settings) for _ in range(rng.choice((1, 1, 1, 2, 3) if size < LARGE else (1, 1, 2)))
    )


def draw_call(
    rng: Random, size: int, codec_settings: CodecSettings, kinds: tuple[CollectiveKind, ...] = _ODDS_OF_KINDS
) -> SimulatedCall:
    kind = rng.choice(kinds)
    ops = _REDUCTIONS + codec_settings.lossy * ("sum", "mean") * 4  # which alone may be lossy
    op = rng.choice(ops if kind is CollectiveKind.ALLREDUCE else [op for op in ops if op != ORDERED])
    buckets = tuple(_bucket(rng, size, kind, op, codec_settings) for _ in range(_bucket_count(rng, kind)))
    root = rng.randrange(size) if kind is CollectiveKind.BROADCAST else 0
    return SimulatedCall(kind, op, buckets, root=root, awaited=rng.random() < (0.8 if codec_settings.feedback else 0.5))


def _bucket_count(rng: Random, kind: CollectiveKind) -> int:
    if kind in (CollectiveKind.ALLREDUCE, CollectiveKind.BROADCAST):
        return rng.choice((1, 1, 1, 1, 2, 3))
    return 0 if kind is CollectiveKind.BARRIER else 1


def _bucket(rng: Random, size: int, kind: CollectiveKind, op: str, codec_settings: CodecSettings) -> tuple[str, int]:
    floats = _FLOATS * (3 if codec_settings.lossy else 1) + (() if codec_settings.encodes else _HALVES)
    dtype = rng.choice(floats if op == "mean" else floats + _INTEGERS)
    most = (
        15 * size + 50 if codec_settings.encodes else (4 if size < LARGE else 2) * size
    )  # codecs do not shrink a few numbers
    count = int(rng.random() ** 2 * most)  # often fewer elements than ranks, sometimes none
    if kind is CollectiveKind.ALL_GATHER:
        count = (count // size if codec_settings.encodes else count) * size
    return dtype, count


# -- numbers of a call

_RUBBISH = 77
_POOLED = 1 << 16
_RNG = np.random.default_rng(0)
_POOLS = {  # slices of these are much faster than new random numbers
    "any": _RNG.normal(size=_POOLED),
    "small": _RNG.integers(1, 10, size=_POOLED),
    "tiny": _RNG.integers(1, 3, size=_POOLED),
}
_TOTALS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda given: given.sum(axis=0, dtype=given.dtype),
    "mean": lambda given: given.sum(axis=0, dtype=given.dtype) / given.dtype.type(len(given)),
    "min": lambda given: given.min(axis=0),
    "max": lambda given: given.max(axis=0),
    "prod": lambda given: given.prod(axis=0, dtype=given.dtype),
}


def _ordered(left: Array, right: Array, out: Array) -> None:
    """Operation that is neither commutative nor associative: the result reveals the order."""
    out[...] = left * 3 + right


@cache
def _arithmetic(kind: CollectiveKind, dtype: str, op: str, size: int) -> Arithmetic:
    if kind not in REDUCING or op == ORDERED:
        return Arithmetic(np.dtype(dtype), _ordered, None)
    return arithmetic_of(dtype, op, size, half_precision="float32")


class CallNumbers:
    """Inputs of all ranks in one call, and its expected results.

    They are small integers, so that sums are exact and lossless codecs have something to compress. Where a codec may be
    lossy, they are numbers that lose precision.
    """

    def __init__(self, call: SimulatedCall, size: int, codec_settings: CodecSettings, seed: int) -> None:
        self.call, self.size = call, size
        self.may_lose = [codec_settings.may_lose(call, bucket) for bucket in range(len(call.buckets))]
        self.given = [self._given(bucket, seed) for bucket in range(len(call.buckets))]
        self._totals = [self._total(bucket) for bucket in range(len(call.buckets))]

    def _given(self, bucket: int, seed: int) -> Array:
        dtype, count = self.call.buckets[bucket]
        pool = _POOLS["any" if self.may_lose[bucket] else "tiny" if self.call.op == "prod" else "small"]
        numbers = self.size * count
        first = (seed * 7919 + bucket * 613) % (len(pool) - numbers)
        return pool[first : first + numbers].astype(dtype).reshape(self.size, count)

    def total(self, bucket: int) -> Array | None:
        """Expected result of a bucket; None if it is only known to be the same on all ranks."""
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
                total = given.reshape(self.size, self.size, -1).diagonal().T.reshape(-1)  # the share of each rank
            case _:
                return None if call.op == ORDERED else _TOTALS[call.op](given)
        return total


class SimulatedMemory:
    """Buckets of one rank in one call, from its start until the caller has them back."""

    def __init__(self, call_numbers: CallNumbers, rank: int, *, saves: bool) -> None:
        self._call_numbers, self._rank = call_numbers, rank
        # An all-gather always has memory of its own.
        self._saves = saves and call_numbers.call.kind is not CollectiveKind.ALL_GATHER
        self.numbers = [self._numbers(bucket) for bucket in range(len(call_numbers.given))]
        if call_numbers.call.kind in (CollectiveKind.BROADCAST, CollectiveKind.BARRIER):
            nothing = np.empty(0, np.uint8)
            self.numbers.append(Bucket(nothing, None, np.add))

    def _numbers(self, bucket: int) -> Bucket:
        call_numbers = self._call_numbers
        dtype, count = call_numbers.call.buckets[bucket]
        arithmetic = _arithmetic(call_numbers.call.kind, dtype, call_numbers.call.op, call_numbers.size)
        ours = call_numbers.given[bucket][self._rank].copy()
        saved = np.full(count, _RUBBISH, arithmetic.carrier) if self._saves else None
        what = f"{call_numbers.call.kind.value} {call_numbers.call.op} of {call_numbers.call.buckets}, bucket {bucket}"
        return arithmetic.bucket(ours, saved, Label(what, what))

    def results(self) -> list[tuple[Array, Array | None]]:
        """Results of this rank, each with the expected one."""
        call_numbers, rank = self._call_numbers, self._rank
        if call_numbers.call.kind is CollectiveKind.BROADCAST and rank == call_numbers.call.root:
            return []
        pairs: list[tuple[Array, Array | None]] = []
        for bucket in range(len(call_numbers.given)):
            got, total = self.numbers[bucket].ours, call_numbers.total(bucket)
            share = self._share(got.size)
            pairs.append((got[share], None if total is None else total[share]))
        return pairs

    def losses(self) -> Iterator[tuple[str, int, slice, Array]]:
        """For buckets that a codec may change: name, elements, this rank's share, and input minus result."""
        for bucket, numbers in enumerate(self.numbers):
            if bucket < len(self._call_numbers.given) and self._call_numbers.may_lose[bucket]:
                assert numbers.label is not None
                share = self._share(numbers.ours.size)
                brought = self._call_numbers.given[bucket][:, share].sum(axis=0, dtype=np.float64)
                missing = brought - numbers.weight * numbers.ours[share].astype(np.float64)
                yield numbers.label.name, numbers.ours.size, share, missing

    def _share(self, count: int) -> slice:
        if self._call_numbers.call.kind is not CollectiveKind.REDUCE_SCATTER:
            return slice(count)
        size = self._call_numbers.size
        return slice(count * self._rank // size, count * (self._rank + 1) // size)

    def is_intact(self) -> bool:
        """Whether the caller's numbers are unchanged."""
        return not self._saves or all(
            np.array_equal(numbers.ours, given[self._rank])
            for numbers, given in zip(self.numbers, self._call_numbers.given, strict=False)
        )

    def spoil(self) -> None:
        """Overwrite the memory, as a caller may do at once."""
        for numbers in self.numbers:
            numbers.ours.fill(_RUBBISH)

    def was_left_alone(self) -> bool:
        """Whether nobody has written to it since `spoil`."""
        return all(bool((numbers.ours == _RUBBISH).all()) for numbers in self.numbers)


def bits(results: list[tuple[Array, Any]]) -> bytes:
    return b"".join(got.tobytes() for got, _ in results)
