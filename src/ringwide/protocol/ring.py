"""Segmented ring: every segment travels from neighbour to neighbour.

In an all-reduce a segment of chunk `c` starts at rank c + 1 and meets every rank once: each adds its own numbers and
passes the sum on at once. After size - 1 hops the total is at rank `c`, its owner. It goes on for a second lap of
size - 1 hops, and each rank keeps it. The other collectives are parts of that journey:

                      starts at        adds until hop    ends at hop
    all-reduce        rank c + 1       size - 1          2 (size - 1)
    reduce-scatter    rank c + 1       size - 1          size - 1
    all-gather        rank c           -                 size - 1
    broadcast         the root         -                 size - 1

Because all segments travel at the same time, every link is busy all the time, and a rank sends and receives only
2 (size - 1) / size of the bucket. Arrival alone decides: there are no rounds to wait for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ringwide.protocol.instruction import Combine, Finish, Keep, Relay, Script, Send


@dataclass(frozen=True, slots=True)
class Layout:
    """Division of `count` elements of `itemsize` bytes into chunks and segments."""

    count: int
    itemsize: int
    chunks: int
    segment_bytes: int
    segments_per_chunk: int = field(init=False)
    bounds: tuple[tuple[int, int], ...] = field(init=False, repr=False)
    """First element of each segment, and the element after its last."""

    def __post_init__(self) -> None:
        largest_chunk = -(-self.count // self.chunks)
        segment = max(1, self.segment_bytes // self.itemsize)  # in whole elements: none lies in two segments
        pieces = max(1, -(-largest_chunk // segment))
        object.__setattr__(self, "segments_per_chunk", pieces)
        object.__setattr__(self, "bounds", tuple(self._bounds(pieces)))

    def _bounds(self, pieces: int) -> list[tuple[int, int]]:
        edges = [
            first + (last - first) * piece // pieces
            for first, last in (self.chunk_bounds(chunk) for chunk in range(self.chunks))
            for piece in range(pieces)
        ]
        return list(zip(edges, [*edges[1:], self.count], strict=True))

    @property
    def segments(self) -> int:
        return self.chunks * self.segments_per_chunk

    @property
    def largest_segment_bytes(self) -> int:
        return -(-self.count // self.segments) * self.itemsize

    def chunk_bounds(self, chunk: int) -> tuple[int, int]:
        return self.count * chunk // self.chunks, self.count * (chunk + 1) // self.chunks

    def chunk_of(self, segment: int) -> int:
        return segment // self.segments_per_chunk

    def segments_of(self, chunk: int) -> range:
        return range(chunk * self.segments_per_chunk, (chunk + 1) * self.segments_per_chunk)


@dataclass(frozen=True, slots=True)
class Journey:
    """Path of the segments: the rank where each chunk starts, the last hop that adds, and the last hop."""

    size: int
    starts: tuple[int, ...]
    adds_until: int
    ends: int

    @classmethod
    def allreduce(cls, size: int) -> "Journey":
        return cls(size, cls._after_owner(size), size - 1, 2 * (size - 1))

    @classmethod
    def reduce_scatter(cls, size: int) -> "Journey":
        return cls(size, cls._after_owner(size), size - 1, size - 1)

    @classmethod
    def all_gather(cls, size: int) -> "Journey":
        return cls(size, tuple(range(size)), 0, size - 1)

    @classmethod
    def broadcast(cls, size: int, root: int) -> "Journey":
        return cls(size, (root,), 0, size - 1)

    @staticmethod
    def _after_owner(size: int) -> tuple[int, ...]:
        return tuple((chunk + 1) % size for chunk in range(size))


class RingSchedule:
    """One rank's part of a journey, hop by hop. Shared by all collectives with the same plan."""

    def __init__(self, *, rank: int, layout: Layout, journey: Journey) -> None:
        self.layout, self.size, self.ends, self.adds_until = layout, journey.size, journey.ends, journey.adds_until
        self.predecessor, self.successor = (rank - 1) % journey.size, (rank + 1) % journey.size
        self.scripts = [self._script(hop) for hop in range(journey.ends + 1)]
        self.first_hops = [self._first_hop(rank, start) for start in journey.starts]
        self.departures = [
            (segment, self.scripts[0])
            for chunk, start in enumerate(journey.starts)
            for segment in layout.segments_of(chunk)
            if start == rank and journey.ends > 0
        ]
        self.arrivals = sum(map(self._visits, self.first_hops)) * layout.segments_per_chunk

    def _script(self, hop: int) -> Script:
        onward = (Send(hop + 1, self.successor),) if hop < self.ends else ()
        if hop == 0:
            return onward
        if hop < self.adds_until:
            return (Relay(hop + 1, self.successor),)
        if hop == self.adds_until:
            return (Combine(True), Finish(), *onward)
        return (Keep(), *onward)

    def _first_hop(self, rank: int, start: int) -> int:
        """The hop at which a chunk's segments first arrive here. A segment that starts here comes back after a lap."""
        return (rank - start) % self.size or self.size

    def _visits(self, first_hop: int) -> int:
        return len(range(first_hop, self.ends + 1, self.size))


class RingMachine:
    """One rank's side of a collective on the ring."""

    overwrites_sent = False  # a segment's total only comes back after our own numbers have left

    def __init__(self, schedule: RingSchedule) -> None:
        self._schedule = schedule
        self._visits = bytearray(schedule.layout.segments)  # how often each segment has been here
        self._missing = schedule.arrivals

    @property
    def done(self) -> bool:
        return self._missing == 0

    def begin(self) -> Iterable[tuple[int, Script]]:
        return self._schedule.departures

    def expects(self, peer: int, segment: int, hop: int) -> bool:
        schedule = self._schedule
        if peer != schedule.predecessor or segment >= schedule.layout.segments or hop > schedule.ends:
            return False
        first = schedule.first_hops[schedule.layout.chunk_of(segment)]
        return hop == first + self._visits[segment] * schedule.size

    def combines(self, hop: int) -> bool:
        return hop <= self._schedule.adds_until

    def is_partial(self, hop: int) -> bool:
        return 1 < hop <= self._schedule.adds_until

    def arrive(self, segment: int, hop: int) -> Script:
        self._visits[segment] += 1
        self._missing -= 1
        return self._schedule.scripts[hop]

    def waiting_for(self) -> Sequence[int]:
        return () if self.done else (self._schedule.predecessor,)
