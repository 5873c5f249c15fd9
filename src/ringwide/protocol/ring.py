"""The segmented ring: every segment goes on a journey from neighbour to neighbour.

In an all-reduce a segment of chunk `c` starts at rank c + 1 and meets every rank once: each adds its own numbers and
passes the sum on at once. After size - 1 hops it is at rank `c`, its owner, with the total. It goes on for a second
lap of size - 1 hops, and each rank keeps it. The other collectives are parts of that journey:

                      starts at        adds until hop    ends at hop
    all-reduce        rank c + 1       size - 1          2 (size - 1)
    reduce-scatter    rank c + 1       size - 1          size - 1
    all-gather        rank c           -                 size - 1
    broadcast         the root         -                 size - 1

Because all segments travel at the same time, every link is busy all the time, and a rank sends and receives only
2 (size - 1) / size of the bucket. Arrival alone decides: there are no rounds to wait for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ringwide.protocol.instruction import Combine, Finish, Instruction, Keep, Send
from ringwide.protocol.layout import Layout


@dataclass(frozen=True, slots=True)
class Journey:
    """Where the segments of each chunk start, how long they are added to, where they end."""

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


class RingMachine:
    """One rank's side of a collective on the ring."""

    overwrites_sent = False  # a segment's total only comes back after its partial sum has left

    def __init__(self, *, rank: int, layout: Layout, journey: Journey) -> None:
        self._rank, self._layout, self._journey = rank, layout, journey
        self._predecessor = (rank - 1) % journey.size
        self._successor = (rank + 1) % journey.size
        self._first_hops = [self._first_hop(chunk) for chunk in range(layout.chunks)]
        self._visits = bytearray(layout.segments)  # how often each segment has come by
        self._missing = sum(self._visits_due(first) for first in self._first_hops) * layout.segments_per_chunk

    def _first_hop(self, chunk: int) -> int:
        """The hop at which a chunk's segments first arrive here. A segment that starts here comes back after a lap."""
        return (self._rank - self._journey.starts[chunk]) % self._journey.size or self._journey.size

    def _visits_due(self, first_hop: int) -> int:
        return len(range(first_hop, self._journey.ends + 1, self._journey.size))

    @property
    def done(self) -> bool:
        return self._missing == 0

    def begin(self) -> Iterable[Instruction]:
        if self._journey.ends == 0:  # alone in the ring
            return
        for chunk, start in enumerate(self._journey.starts):
            if start == self._rank:
                for segment in self._layout.segments_of(chunk):
                    yield Send(segment, 1, self._successor)

    def expects(self, peer: int, segment: int, hop: int) -> bool:
        if peer != self._predecessor or segment >= self._layout.segments or hop > self._journey.ends:
            return False
        first = self._first_hops[self._layout.chunk_of(segment)]
        return hop == first + self._visits[segment] * self._journey.size

    def combines(self, hop: int) -> bool:
        return hop <= self._journey.adds_until

    def arrive(self, segment: int, hop: int) -> Iterable[Instruction]:
        self._visits[segment] += 1
        self._missing -= 1
        if hop <= self._journey.adds_until:
            yield Combine(segment, hop, True)
            if hop == self._journey.adds_until:
                yield Finish(segment)
        else:
            yield Keep(segment, hop)
        if hop < self._journey.ends:
            yield Send(segment, hop + 1, self._successor)

    def waiting_for(self) -> Sequence[int]:
        return () if self.done else (self._predecessor,)
