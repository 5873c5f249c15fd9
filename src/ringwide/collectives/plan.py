"""Plan of a collective: how its buckets are cut, and which algorithm carries each. Ranks that plan alike agree.

One visible rule chooses the algorithm: see `Planner.algorithm_for`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from hashlib import blake2b

from ringwide.protocol.direct import DirectMachine
from ringwide.protocol.instruction import Machine
from ringwide.protocol.ring import Journey, Layout, RingMachine, RingSchedule
from ringwide.protocol.tree import TreeMachine, TreeSchedule, fanout_of
from ringwide.tensors.bucket import BucketShape
from ringwide.transport.link import EXPRESS_BYTES


class CollectiveKind(Enum):
    """What ranks can do together."""

    ALLREDUCE = "allreduce"
    REDUCE = "reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    BARRIER = "barrier"
    EXCHANGE = "exchange"

    __hash__ = object.__hash__  # members are looked up with every call, and that of Enum is written in Python


REDUCING = (CollectiveKind.ALLREDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)
"""Those that combine the numbers of all ranks."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asked for. Ranks whose requests are equal can compute together."""

    kind: CollectiveKind
    detail: str  # operation or root, tensors and their shapes: everything that must be equal, readable
    buckets: tuple[BucketShape, ...]
    root: int = 0


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The plan of one bucket."""

    layout: Layout
    algorithm: str
    express: bool
    machine: Callable[[], Machine]
    tree: TreeSchedule | None = None
    """The way of its only segment, if it is small and takes the tree: no machine is needed for that."""
    fanout: int = 0

    def __str__(self) -> str:
        """All that two ranks must have in common to understand each other's frames."""
        cut, shape = self.layout, f" with fan-out {self.fanout}" if self.fanout else ""
        lanes = "express" if self.express else "bulk"
        pieces = f"{cut.chunks} x {cut.segments_per_chunk} segments of {cut.segment_bytes} bytes"
        return f"{self.algorithm}{shape} over {lanes} lanes, {cut.count} x {cut.itemsize} bytes in {pieces}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one collective. `what` and `how` are for people, `fingerprint` travels on every frame.

    The fingerprint is that of all of it: ranks that were asked for the same and go about it differently find out, too.
    """

    what: str
    how: str
    fingerprint: int
    parts: tuple[BucketPlan, ...]
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
        tree_bytes: int,
        express_bytes: int = EXPRESS_BYTES,
        fanout: int | None = None,
    ) -> None:
        self._rank, self._size, self._segment_bytes = rank, size, segment_bytes
        self._algorithm, self._tree_bytes, self._express_bytes = algorithm, tree_bytes, express_bytes
        self._tree = TreeSchedule(rank=rank, size=size, fanout=fanout_of(size) if fanout is None else fanout)

    def algorithm_for(self, nbytes: int) -> str:
        """Small buckets cost hops, so they take the way with the fewest; large ones cost bytes and take the ring."""
        if self._algorithm != "auto":
            return self._algorithm
        return "tree" if nbytes <= self._tree_bytes else "ring"

    def exchanges_bulk(self, peer: int) -> bool:
        """Bulk goes to the neighbours on the ring, and along the tree if that carries bulk as well."""
        if abs(peer - self._rank) in (1, self._size - 1):
            return True
        grows = self._algorithm == "tree" or (self._algorithm == "auto" and self._tree_bytes > self._express_bytes)
        return grows and any(stop.peer == peer for stop in self._tree.stops)

    def plan(self, request: Request, *, gated: bool = False) -> Plan:
        """`gated`: it is for a named channel."""
        parts = [self._part(request, bucket) for bucket in request.buckets]
        express = all(part.express for part in parts)
        gated = gated and not express
        if request.kind is CollectiveKind.BROADCAST or gated or not parts:
            # Data flows only away from the root, or there is none: empty frames let every rank hear of every other.
            parts.append(self._by_tree(BucketShape("", 0, 1)))
        what, how = f"{request.kind.value}({request.detail})", "; ".join(map(str, parts))
        digest = blake2b(repr((what, request.buckets, how)).encode(), digest_size=8).digest()
        gate = len(parts) - 1 if gated else None
        return Plan(what, how, int.from_bytes(digest, "little"), tuple(parts), express, gate)

    def _part(self, request: Request, bucket: BucketShape) -> BucketPlan:
        algorithm = self.algorithm_for(bucket.count * bucket.itemsize)
        match request.kind:
            case kind if kind in REDUCING and (algorithm == "tree" or self._size == 1):
                return self._by_tree(bucket)
            case (
                CollectiveKind.ALLREDUCE | CollectiveKind.REDUCE
            ):  # the total goes to all: whoever has no use for it has a copy of its own
                return self._ring(bucket, Journey.allreduce(self._size), chunks=self._size)
            case CollectiveKind.REDUCE_SCATTER:
                return self._ring(bucket, Journey.reduce_scatter(self._size), chunks=self._size)
            case CollectiveKind.ALL_GATHER | CollectiveKind.EXCHANGE if (
                algorithm == "ring" or bucket.count * bucket.itemsize > self._express_bytes
            ):
                return self._ring(bucket, Journey.all_gather(self._size), chunks=self._size)
            case (
                CollectiveKind.ALL_GATHER | CollectiveKind.EXCHANGE
            ):  # an exchange begins with what everybody sends and expects
                return self._direct(bucket, chunks=self._size, senders=range(self._size))
            case CollectiveKind.BROADCAST if (
                algorithm == "ring" or bucket.count * bucket.itemsize > self._express_bytes
            ):
                return self._ring(bucket, Journey.broadcast(self._size, request.root), chunks=1)
            case CollectiveKind.BROADCAST:
                return self._direct(bucket, chunks=1, senders=range(request.root, request.root + 1))
            case CollectiveKind.BARRIER:
                return self._by_tree(bucket)

    def _ring(self, bucket: BucketShape, journey: Journey, *, chunks: int) -> BucketPlan:
        layout = Layout(bucket.count, bucket.itemsize, chunks, self._segment_bytes)
        schedule = RingSchedule(rank=self._rank, layout=layout, journey=journey)
        return BucketPlan(layout, "ring", False, lambda: RingMachine(schedule))

    def _by_tree(self, bucket: BucketShape) -> BucketPlan:
        """Whatever takes the tree takes the same one, barriers too: in a ring with two of them, a rank could wait for
        a child that has another parent in its own call, and nobody would notice that they disagree."""
        express = bucket.count * bucket.itemsize <= self._express_bytes
        layout = Layout(bucket.count, bucket.itemsize, 1, self._express_bytes if express else self._segment_bytes)
        segments, schedule = layout.segments, self._tree
        alone = schedule if express and segments == 1 else None
        machine = partial(TreeMachine, schedule, segments=segments)
        return BucketPlan(layout, "tree", express, machine, alone, schedule.fanout)

    def _direct(self, bucket: BucketShape, *, chunks: int, senders: range) -> BucketPlan:
        layout = Layout(bucket.count, bucket.itemsize, chunks, self._express_bytes)
        who = dict(enumerate(senders))
        return BucketPlan(layout, "direct", True, lambda: DirectMachine(rank=self._rank, size=self._size, senders=who))
