"""What a seed means: how large the ring is, who calls what, what the network is like and what goes wrong."""

from dataclasses import dataclass, replace
from enum import Enum
from random import Random

import numpy as np

from ringwide.codec import registry
from ringwide.codec.codec import Codec
from ringwide.collective.plan import BucketShape, Kind, Request

ORDERED = "ordered"
"""An operation of which even a swap of two ranks' numbers changes the result: only for checking equal bits."""

_CAN_ENCODE = ("auto", "ring")
_ALGORITHMS = (*_CAN_ENCODE, "doubling", "star")
_REDUCTIONS = ("sum", "sum", "mean", "min", "max", "prod", ORDERED)
_INTEGERS = ("int64", "int32", "uint8")
_FLOATS = ("float64", "float32")
REDUCING = (Kind.ALLREDUCE, Kind.REDUCE_SCATTER)
_ODDS_OF_KINDS = (*[Kind.ALLREDUCE] * 4, Kind.REDUCE_SCATTER, Kind.ALL_GATHER, Kind.BROADCAST, Kind.BARRIER)


@dataclass(frozen=True, slots=True)
class Call:
    """One collective that every rank calls."""

    kind: Kind
    op: str
    buckets: tuple[tuple[str, int], ...]  # of each: dtype, elements
    root: int
    awaited: bool  # the caller waits for it before the next call

    def request(self) -> Request:
        tensors = ", ".join(f"{dtype}[{count}]" for dtype, count in self.buckets)
        lead = f"root {self.root}" if self.kind is Kind.BROADCAST else self.op
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

    def may_lose(self, call: Call, bucket: int) -> bool:
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
_ODDS_OF_CODINGS = (
    *[_RAW] * (len(_LOSSLESS) + len(_LOSSY) + 2),
    *_LOSSLESS,
    *_LOSSY,
    CodecSettings("auto"),
    CodecSettings("auto", lossy=True),
)


class FaultKind(Enum):
    """What goes wrong, if anything."""

    NONE = "none"
    MISMATCH = "mismatch"  # some ranks call something else
    ABORT = "abort"  # a rank gives up on a collective
    KILL = "kill"  # all connections of a rank end
    LEAVE = "leave"  # a rank says goodbye while the others go on


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: it strikes `rank`, `delay` after its call number `call`."""

    kind: FaultKind
    rank: int
    call: int
    delay: float
    abrupt: bool  # a kill in which even what has left is lost, or giving up before having begun
    odd: frozenset[int]  # the ranks that call `other`
    other: Call

    def skips(self, rank: int, call: int) -> bool:
        return self.kind is FaultKind.ABORT and self.abrupt and (self.rank, self.call) == (rank, call)


@dataclass(frozen=True, slots=True)
class Weather:
    """What time and chance do."""

    latency: float  # the longest way of a byte, in seconds
    pause: float  # the longest wait of a caller between two calls
    taken_at_once: float  # the chance that the kernel takes a frame when it is sent, and not later
    split: float  # the chance that it takes only a part
    drowsy: float  # the chance that a rank reads what has come only later, perhaps with more behind it
    toil: float  # the longest wait of a codec's job, or of its result, in seconds
    capacity_bytes: int  # how much a connection holds that the other side has not read


@dataclass(frozen=True, slots=True)
class Scenario:
    """One life of a ring."""

    size: int
    algorithm: str
    crowded: bool  # ranks share fewer cores
    segment_bytes: int
    doubling_bytes: int
    express_bytes: int
    staging_bytes: int
    lanes: int
    coding: CodecSettings
    calls: tuple[Call, ...]
    fault: Fault
    weather: Weather
    parting: bool  # ranks leave when their calls have ended

    @property
    def keeps_books(self) -> bool:
        """Every call of a bucket has error feedback, as no other one is under way; and all ranks succeed, or none."""
        requests = {call.request() for call in self.calls}
        apart = len(requests) == len(self.calls) or all(call.awaited for call in self.calls)
        return self.coding.feedback and apart and self.fault.kind in (FaultKind.NONE, FaultKind.MISMATCH)

    @property
    def depends_on_time(self) -> bool:
        """A lossy codec or its feedback is used in some calls, but which ones is a matter of time."""
        return self.coding.lossy and (self.coding.codec == "auto" or (self.coding.feedback and not self.keeps_books))

    def calls_of(self, rank: int) -> list[Call]:
        """What one rank calls."""
        calls, fault = list(self.calls), self.fault
        if fault.kind is FaultKind.MISMATCH and rank in fault.odd:
            calls[fault.call] = fault.other
        if fault.kind is FaultKind.LEAVE and rank == fault.rank:
            del calls[fault.call + 1 :]
        return calls


def scenario_of(seed: int) -> Scenario:
    """Draw everything from the seed. Small rings are the most frequent: they are the fastest to try."""
    chance = Random(seed)
    coding = _coding(Random(f"coding {seed}"))
    size = 2 + int((7 if coding.encodes else 15) * chance.random() ** 8)  # jobs take their time
    calls = _calls(chance, size, coding)
    weather = _weather(chance, coding)
    return Scenario(
        size=size,
        algorithm=chance.choice(_CAN_ENCODE if coding.encodes else _ALGORITHMS),
        crowded=chance.random() < 0.5,
        segment_bytes=chance.choice((128, 256, 512) if coding.encodes else (8, 20, 64, 256)),
        doubling_bytes=min(chance.choice((0, 32, 128)), coding.threshold_bytes if coding.encodes else 128),
        express_bytes=chance.choice((8, 32, 4096)),
        staging_bytes=chance.choice((0, 60, 400)),
        lanes=chance.randint(1, 3),
        coding=coding,
        calls=calls,
        fault=_fault(chance, size, calls, weather, coding),
        weather=weather,
        parting=chance.random() < 0.4,
    )


def _coding(chance: Random) -> CodecSettings:
    coding = chance.choice(_ODDS_OF_CODINGS)
    if coding is _RAW:
        return coding
    return replace(coding, threshold_bytes=chance.choice((0, 0, 32)), feedback=coding.lossy and chance.random() < 0.7)


def _calls(chance: Random, size: int, coding: CodecSettings) -> tuple[Call, ...]:
    """With error feedback or `auto`, what happened in one call changes the next one with the same tensors."""
    if coding.codec == "auto" or (coding.feedback and chance.random() < 0.5):
        call = _call(chance, size, coding, (Kind.ALLREDUCE, Kind.ALLREDUCE, Kind.REDUCE_SCATTER))
        repeated = chance.randint(5, 9) if coding.codec == "auto" else 3
        return (call,) * repeated
    return tuple(_call(chance, size, coding) for _ in range(chance.choice((1, 2, 2, 4))))


def _call(chance: Random, size: int, coding: CodecSettings, kinds: tuple[Kind, ...] = _ODDS_OF_KINDS) -> Call:
    kind = chance.choice(kinds)
    ops = _REDUCTIONS + coding.lossy * ("sum", "mean") * 4  # which alone may lose something
    op = chance.choice(ops if kind is Kind.ALLREDUCE else [op for op in ops if op != ORDERED])
    buckets = tuple(_bucket(chance, size, kind, op, coding) for _ in range(_bucket_count(chance, kind)))
    root = chance.randrange(size) if kind is Kind.BROADCAST else 0
    return Call(kind, op, buckets, root=root, awaited=chance.random() < (0.8 if coding.feedback else 0.5))


def _bucket_count(chance: Random, kind: Kind) -> int:
    if kind in (Kind.ALLREDUCE, Kind.BROADCAST):
        return chance.choice((1, 1, 1, 2, 3))
    return 0 if kind is Kind.BARRIER else 1


def _bucket(chance: Random, size: int, kind: Kind, op: str, coding: CodecSettings) -> tuple[str, int]:
    dtype = chance.choice(_FLOATS if op == "mean" else _FLOATS * (3 if coding.lossy else 1) + _INTEGERS)
    most = 4 * size if not coding.encodes else 15 * size + 50  # a few numbers do not shrink
    count = int(chance.random() ** 2 * most)  # often fewer elements than ranks, now and then none
    if kind is Kind.ALL_GATHER:
        count = (count // size if coding.encodes else count) * size
    return dtype, count


def _weather(chance: Random, coding: CodecSettings) -> Weather:
    latency = chance.choice((1e-4, 1e-2))
    return Weather(
        latency=latency,
        pause=latency * chance.choice((0.1, 3.0, 30.0)),
        taken_at_once=chance.choice((0.0, 0.7, 1.0)),
        split=chance.choice((0.0, 0.0, 0.3)),
        drowsy=chance.choice((0.0, 0.0, 0.4)),
        toil=latency * chance.choice((0.1, 1.0, 10.0)) if coding.encodes else 0.0,
        capacity_bytes=chance.choice((50, 500, 1_000_000)),
    )


def _fault(chance: Random, size: int, calls: tuple[Call, ...], weather: Weather, coding: CodecSettings) -> Fault:
    kind = chance.choice(tuple(FaultKind))
    call = chance.randrange(len(calls))
    other = _call(chance, size, coding)
    while other.request() == calls[call].request():
        other = _call(chance, size, coding)
    odd = frozenset(rank for rank in range(size) if chance.random() < 0.3)
    everyone = len(odd) == size
    return Fault(
        kind=kind,
        rank=chance.randrange(size),
        call=call,
        delay=chance.random() ** 2 * (2 * size * (weather.latency + weather.toil) + weather.pause),  # mostly in time
        abrupt=chance.random() < 0.5,
        odd=odd if odd and not everyone else frozenset({chance.randrange(size)}),
        other=other,
    )
