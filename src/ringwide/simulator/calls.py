"""Who calls what: the collectives of one life, drawn by chance, and how their numbers travel."""

from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

import numpy as np

from ringwide.collectives.plan import CollectiveKind, Request
from ringwide.compression.codecs import registry
from ringwide.compression.codecs.base import Codec
from ringwide.tensors.bucket import BucketShape

ORDERED = "ordered"
"""An operation of which even a swap of two ranks' numbers changes the result: only for checking equal bits."""

_REDUCTIONS = ("sum", "sum", "mean", "min", "max", "prod", ORDERED)
_INTEGERS = ("int64", "int32", "uint8")
_FLOATS = ("float64", "float32")
REDUCING = (CollectiveKind.ALLREDUCE, CollectiveKind.REDUCE_SCATTER)
_ODDS_OF_KINDS = (
    *[CollectiveKind.ALLREDUCE] * 4,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.BROADCAST,
    CollectiveKind.BARRIER,
)
LARGE = 5
"""Rings of so many ranks and more have fewer calls and fewer numbers for each rank: they take the longest to try."""


@dataclass(frozen=True)
class SimulatedCall:
    """One collective that every rank calls."""

    kind: CollectiveKind
    op: str
    buckets: tuple[tuple[str, int], ...]  # of each: dtype, elements
    root: int
    awaited: bool  # the caller waits for it before the next call

    @cached_property
    def request(self) -> Request:
        tensors = ", ".join(f"{dtype}[{count}]" for dtype, count in self.buckets)
        lead = f"root {self.root}" if self.kind is CollectiveKind.BROADCAST else self.op
        shapes = tuple(BucketShape(dtype, count, np.dtype(dtype).itemsize) for dtype, count in self.buckets)
        return Request(self.kind, f"{lead}, {tensors}", shapes, self.root)


@dataclass(frozen=True, slots=True)
class CodecSettings:
    """How numbers travel: as in `RingConfig`."""

    codec: str = "none"
    shuffle: bool = False
    lossy: bool = False  # codecs that lose precision are allowed
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
        """Only sums of floats may be changed by a codec."""
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
_ODDS_OF_CODINGS = (*[_RAW] * 40, *_LOSSLESS * 2, *_LOSSY * 2, *_AUTO)


def codec_jobs_by(chance: Random) -> CodecSettings:
    codec_jobs = chance.choice(_ODDS_OF_CODINGS)
    if codec_jobs is _RAW:
        return codec_jobs
    return replace(
        codec_jobs, threshold_bytes=chance.choice((0, 0, 32)), feedback=codec_jobs.lossy and chance.random() < 0.7
    )


def calls_by(chance: Random, size: int, codec_jobs: CodecSettings) -> tuple[SimulatedCall, ...]:
    """With error feedback or `auto`, what happened in one call changes the next one with the same tensors."""
    if codec_jobs.codec == "auto" or (codec_jobs.feedback and chance.random() < 0.5):
        call = call_by(
            chance,
            size,
            codec_jobs,
            (CollectiveKind.ALLREDUCE, CollectiveKind.ALLREDUCE, CollectiveKind.REDUCE_SCATTER),
        )
        repeated = chance.randint(5, 9) if codec_jobs.codec == "auto" else 3
        return (call,) * repeated
    return tuple(
        call_by(chance, size, codec_jobs) for _ in range(chance.choice((1, 1, 1, 2, 3) if size < LARGE else (1, 1, 2)))
    )


def call_by(
    chance: Random, size: int, codec_jobs: CodecSettings, kinds: tuple[CollectiveKind, ...] = _ODDS_OF_KINDS
) -> SimulatedCall:
    kind = chance.choice(kinds)
    ops = _REDUCTIONS + codec_jobs.lossy * ("sum", "mean") * 4  # which alone may lose something
    op = chance.choice(ops if kind is CollectiveKind.ALLREDUCE else [op for op in ops if op != ORDERED])
    buckets = tuple(_bucket(chance, size, kind, op, codec_jobs) for _ in range(_bucket_count(chance, kind)))
    root = chance.randrange(size) if kind is CollectiveKind.BROADCAST else 0
    return SimulatedCall(kind, op, buckets, root=root, awaited=chance.random() < (0.8 if codec_jobs.feedback else 0.5))


def _bucket_count(chance: Random, kind: CollectiveKind) -> int:
    if kind in (CollectiveKind.ALLREDUCE, CollectiveKind.BROADCAST):
        return chance.choice((1, 1, 1, 1, 2, 3))
    return 0 if kind is CollectiveKind.BARRIER else 1


def _bucket(chance: Random, size: int, kind: CollectiveKind, op: str, codec_jobs: CodecSettings) -> tuple[str, int]:
    dtype = chance.choice(_FLOATS if op == "mean" else _FLOATS * (3 if codec_jobs.lossy else 1) + _INTEGERS)
    most = 15 * size + 50 if codec_jobs.encodes else (4 if size < LARGE else 2) * size  # a few numbers do not shrink
    count = int(chance.random() ** 2 * most)  # often fewer elements than ranks, now and then none
    if kind is CollectiveKind.ALL_GATHER:
        count = (count // size if codec_jobs.encodes else count) * size
    return dtype, count
