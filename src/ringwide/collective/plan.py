"""The plan of a collective: how its buckets are cut and which algorithm carries each. Ranks that plan alike agree.

One visible rule chooses the algorithm: see `Planner.algorithm_for`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

from ringwide.protocol.direct import DirectMachine
from ringwide.protocol.doubling import Schedule, StopsMachine, doubling_schedule
from ringwide.protocol.instruction import Machine
from ringwide.protocol.layout import Layout
from ringwide.protocol.ring import Journey, RingMachine, RingSchedule
from ringwide.protocol.star import star_schedule
from ringwide.transport.link import EXPRESS_BYTES


class Kind(Enum):
    """What ranks can do together."""

    ALLREDUCE = "allreduce"
    REDUCE = "reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    BARRIER = "barrier"
    EXCHANGE = "exchange"

    __hash__ = object.__hash__  # members are looked up with every call, and that of Enum is written in Python


REDUCING = (Kind.ALLREDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER)
"""Those that combine the numbers of all ranks."""


@dataclass(frozen=True, slots=True)
class BucketShape:
    """A bucket as the plan sees it: how many elements of which type."""

    dtype: str
    count: int
    itemsize: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asked for. Ranks whose requests are equal can compute together."""

    kind: Kind
    detail: str  # operation or root, tensors and their shapes: everything that must be equal, readable
    buckets: tuple[BucketShape, ...]
    root: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """The plan of one bucket."""

    layout: Layout
    algorithm: str
    express: bool
    machine: Callable[[], Machine]
    stops: Schedule | None = None
    """The way of its only segment, if it is small and has stops: no machine is needed for that."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one collective. `what` is for people, `fingerprint` travels on every frame."""

    what: str
    fingerprint: int
    parts: tuple[Part, ...]
    express: bool
    gate: int | None = None
    """If it has bulk, and is for a named channel: its part that is done when all ranks have called it."""


class Planner:
    """Makes plans. They depend on the request and on what ranks agreed on when they met, on nothing else."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        segment_bytes: int,
        algorithm: str,
        doubling_bytes: int,
        express_bytes: int = EXPRESS_BYTES,
    ) -> None:
        self._rank, self._size, self._segment_bytes, self._express_bytes = rank, size, segment_bytes, express_bytes
        self._algorithm, self._doubling_bytes = algorithm, doubling_bytes
        self._schedules = {
            "doubling": doubling_schedule(rank=rank, size=size),
            "star": star_schedule(rank=rank, size=size),
        }
        self._doubles_bulk = algorithm == "auto" and doubling_bytes > express_bytes
        self.crowded = False  # all ranks are on one machine that has fewer cores; they agree on that when they have met

    def all_share_memory(self, doubling_bytes: int, express_bytes: int) -> None:
        """All ranks can give each other larger payloads at once; they agree on that when they have met."""
        self._doubling_bytes, self._express_bytes = doubling_bytes, express_bytes

    def algorithm_for(self, nbytes: int) -> str:
        """Small buckets cost hops, so they take the way with the fewest; large ones cost bytes and take the ring."""
        if self._algorithm != "auto":
            return self._algorithm
        return self._for_small if nbytes <= self._doubling_bytes else "ring"

    @property
    def _for_small(self) -> str:
        """Where ranks take turns on the same cores, small buckets cost messages, and those of the star are the fewest.

        All that is small goes the same way. In recursive doubling some ranks first listen to a partner: if they called
        a barrier while that partner gave the numbers of another call to the star, nobody would notice.
        """
        if self._algorithm in self._schedules:
            return self._algorithm
        return "star" if self.crowded and not self._doubles_bulk else "doubling"

    def exchanges_bulk(self, peer: int) -> bool:
        """Bulk goes to the neighbours on the ring, and on the ways of an algorithm that carries bulk beside it."""
        if abs(peer - self._rank) in (1, self._size - 1):
            return True
        beside = self._schedules.get("doubling" if self._doubles_bulk else self._algorithm)
        return beside is not None and any(stop.peer == peer for stop in beside.stops)

    def plan(self, request: Request, *, gated: bool = False) -> Plan:
        """`gated`: it is for a named channel."""
        parts = [self._part(request, bucket) for bucket in request.buckets]
        express = all(part.express for part in parts)
        gated = gated and not express
        if request.kind is Kind.BROADCAST or gated or not parts:
            # Data flows only away from the root, or there is none: empty frames let every rank hear of every other.
            parts.append(self._by_stops(self._for_small, BucketShape("", 0, 1)))
        what = f"{request.kind.value}({request.detail})"
        digest = blake2b(repr((what, request.buckets)).encode(), digest_size=8).digest()
        return Plan(what, int.from_bytes(digest, "little"), tuple(parts), express, len(parts) - 1 if gated else None)

    def _part(self, request: Request, bucket: BucketShape) -> Part:
        algorithm = self.algorithm_for(bucket.count * bucket.itemsize)
        match request.kind:
            case kind if kind in REDUCING and algorithm != "ring":
                return self._by_stops(algorithm, bucket)
            case kind if kind in REDUCING and self._size == 1:
                return self._by_stops(self._for_small, bucket)
            case Kind.ALLREDUCE | Kind.REDUCE:  # the total goes to all: whoever has no use for it has a copy of its own
                return self._ring(bucket, Journey.allreduce(self._size), chunks=self._size)
            case Kind.REDUCE_SCATTER:
                return self._ring(bucket, Journey.reduce_scatter(self._size), chunks=self._size)
            case Kind.ALL_GATHER | Kind.EXCHANGE if (
                algorithm == "ring" or bucket.count * bucket.itemsize > self._express_bytes
            ):
                return self._ring(bucket, Journey.all_gather(self._size), chunks=self._size)
            case Kind.ALL_GATHER | Kind.EXCHANGE:  # an exchange begins with what everybody sends and expects
                return self._direct(bucket, chunks=self._size, senders=range(self._size))
            case Kind.BROADCAST if algorithm == "ring" or bucket.count * bucket.itemsize > self._express_bytes:
                return self._ring(bucket, Journey.broadcast(self._size, request.root), chunks=1)
            case Kind.BROADCAST:
                return self._direct(bucket, chunks=1, senders=range(request.root, request.root + 1))
            case Kind.BARRIER:
                return self._by_stops(self._for_small, bucket)

    def _ring(self, bucket: BucketShape, journey: Journey, *, chunks: int) -> Part:
        layout = Layout(bucket.count, bucket.itemsize, chunks, self._segment_bytes)
        schedule = RingSchedule(rank=self._rank, layout=layout, journey=journey)
        return Part(layout, "ring", False, lambda: RingMachine(schedule))

    def _by_stops(self, algorithm: str, bucket: BucketShape) -> Part:
        express = bucket.count * bucket.itemsize <= self._express_bytes
        layout = Layout(bucket.count, bucket.itemsize, 1, self._express_bytes if express else self._segment_bytes)
        segments, schedule = layout.segments, self._schedules[algorithm]
        alone = schedule if express and segments == 1 else None
        return Part(layout, algorithm, express, lambda: StopsMachine(schedule, segments=segments), alone)

    def _direct(self, bucket: BucketShape, *, chunks: int, senders: range) -> Part:
        layout = Layout(bucket.count, bucket.itemsize, chunks, self._express_bytes)
        who = dict(enumerate(senders))
        return Part(layout, "direct", True, lambda: DirectMachine(rank=self._rank, size=self._size, senders=who))
