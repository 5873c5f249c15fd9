"""What a seed means: how large the ring is, who calls what, what the network is like and what goes wrong."""

from dataclasses import dataclass
from enum import Enum
from random import Random

import numpy as np

from ringwide.collective.plan import BucketShape, Kind, Request

ORDERED = "ordered"
"""An operation of which even a swap of two ranks' numbers changes the result: only for checking equal bits."""

_REDUCTIONS = ("sum", "sum", "mean", "min", "max", "prod", ORDERED)
_INTEGERS = ("int64", "int32", "uint8")
_FLOATS = ("float64", "float32")
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
    capacity_bytes: int  # how much a connection holds that the other side has not read


@dataclass(frozen=True, slots=True)
class Scenario:
    """One life of a ring."""

    size: int
    algorithm: str
    segment_bytes: int
    doubling_bytes: int
    express_bytes: int
    staging_bytes: int
    lanes: int
    calls: tuple[Call, ...]
    fault: Fault
    weather: Weather
    parting: bool  # ranks leave when their calls have ended

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
    size = 2 + int(15 * chance.random() ** 8)
    calls = tuple(_call(chance, size) for _ in range(chance.choice((1, 2, 2, 4))))
    weather = _weather(chance)
    return Scenario(
        size=size,
        algorithm=chance.choice(("auto", "ring", "doubling")),
        segment_bytes=chance.choice((8, 20, 64, 256)),
        doubling_bytes=chance.choice((0, 32, 128)),
        express_bytes=chance.choice((8, 32, 4096)),
        staging_bytes=chance.choice((0, 60, 400)),
        lanes=chance.randint(1, 3),
        calls=calls,
        fault=_fault(chance, size, calls, weather),
        weather=weather,
        parting=chance.random() < 0.4,
    )


def _call(chance: Random, size: int) -> Call:
    kind = chance.choice(_ODDS_OF_KINDS)
    op = chance.choice(_REDUCTIONS if kind is Kind.ALLREDUCE else _REDUCTIONS[:-1])
    buckets = tuple(_bucket(chance, size, kind, op) for _ in range(_bucket_count(chance, kind)))
    root = chance.randrange(size) if kind is Kind.BROADCAST else 0
    return Call(kind, op, buckets, root=root, awaited=chance.random() < 0.5)


def _bucket_count(chance: Random, kind: Kind) -> int:
    if kind in (Kind.ALLREDUCE, Kind.BROADCAST):
        return chance.choice((1, 1, 1, 2, 3))
    return 0 if kind is Kind.BARRIER else 1


def _bucket(chance: Random, size: int, kind: Kind, op: str) -> tuple[str, int]:
    dtype = chance.choice(_FLOATS if op == "mean" else _FLOATS + _INTEGERS)
    count = int(chance.random() ** 2 * 4 * size)  # often fewer elements than ranks, now and then none
    return dtype, count * size if kind is Kind.ALL_GATHER else count


def _weather(chance: Random) -> Weather:
    latency = chance.choice((1e-4, 1e-2))
    return Weather(
        latency=latency,
        pause=latency * chance.choice((0.1, 3.0, 30.0)),
        taken_at_once=chance.choice((0.0, 0.7, 1.0)),
        split=chance.choice((0.0, 0.0, 0.3)),
        drowsy=chance.choice((0.0, 0.0, 0.4)),
        capacity_bytes=chance.choice((50, 500, 1_000_000)),
    )


def _fault(chance: Random, size: int, calls: tuple[Call, ...], weather: Weather) -> Fault:
    kind = chance.choice(tuple(FaultKind))
    call = chance.randrange(len(calls))
    other = _call(chance, size)
    while other.request() == calls[call].request():
        other = _call(chance, size)
    odd = frozenset(rank for rank in range(size) if chance.random() < 0.3)
    everyone = len(odd) == size
    return Fault(
        kind=kind,
        rank=chance.randrange(size),
        call=call,
        delay=chance.random() ** 2 * (2 * size * weather.latency + weather.pause),  # mostly while it is under way
        abrupt=chance.random() < 0.5,
        odd=odd if odd and not everyone else frozenset({chance.randrange(size)}),
        other=other,
    )
