"""Tree: few hops and few messages, for buckets so small that nothing else costs time.

Every rank adds the sums of its children, in the order of their ranks, to its own numbers, and sends the result to its
parent. The root, rank 0, finishes the total and sends it down the tree unchanged. So one rank alone computes the total,
and a collective takes 2 (size - 1) messages, the fewest possible.

The children of rank r are the `fanout` ranks from r * fanout + 1 on. With a fan-out of size - 1 the tree is a star: two
hops, and every rank but the root is woken once. Where that would be too much for one rank, the tree is deeper.

A child may be ahead of its siblings. Its frame then waits for its turn.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ringwide.protocol.instruction import Combine, Finish, Keep, Script, Send

STAR_LIMIT_RANKS = 16
"""Up to so many ranks, the tree is a star."""
FANOUT = 8
"""Children of a rank in larger rings."""


def fanout_of(size: int) -> int:
    """Children per rank. It depends on the size of the ring alone, so all ranks see the same tree."""
    return max(1, size - 1) if size <= STAR_LIMIT_RANKS else FANOUT


def depth(size: int) -> int:
    """Hops between the last rank and the root."""
    rank, hops = size - 1, 0
    while rank:
        rank, hops = (rank - 1) // fanout_of(size), hops + 1
    return hops


class Stop(NamedTuple):
    """One arrival that a rank needs, and the script that follows it."""

    hop: int
    peer: int
    script: Script


class TreeStep(NamedTuple):
    """A script in the form that suits the only segment of a small bucket. Everything it sends arrives at one hop."""

    combines: bool
    keeps: bool
    finishes: bool
    hop: int
    peers: tuple[int, ...]


def step_of(script: Script) -> TreeStep:
    sends = [instruction for instruction in script if isinstance(instruction, Send)]
    return TreeStep(
        combines=any(isinstance(instruction, Combine) for instruction in script),
        keeps=any(isinstance(instruction, Keep) for instruction in script),
        finishes=any(isinstance(instruction, Finish) for instruction in script),
        hop=sends[0].hop if sends else 0,
        peers=tuple(send.peer for send in sends),
    )


class TreeSchedule:
    """One rank's part: what it sends at once, then its arrivals in order. Shared by all collectives with the same plan.

    Hop r is the sum that rank r sends to its parent; hop `size` is the total on its way down.
    """

    def __init__(self, *, rank: int, size: int, fanout: int) -> None:
        self.fanout, self.last_hop = fanout, size
        self.partial_hops = range(1, -(-(size - 1) // fanout))  # of ranks with children, but the root
        self.children = range(rank * fanout + 1, min(size, (rank + 1) * fanout + 1))
        self.parent = (rank - 1) // fanout if rank else None
        total_down = tuple(Send(size, child) for child in self.children)
        upward: Script = (Finish(), *total_down) if self.parent is None else (Send(rank, self.parent),)
        sums = [Stop(child, child, (Combine(False),)) for child in self.children]
        if sums:
            sums[-1] = sums[-1]._replace(script=(*sums[-1].script, *upward))
        total = [] if self.parent is None else [Stop(size, self.parent, (Keep(), *total_down))]
        self.departure: Script = () if sums else upward
        self.stops: Sequence[Stop] = [*sums, *total]
        self.first_step, self.steps = step_of(self.departure), [step_of(stop.script) for stop in self.stops]
        self.next_hop = next((step.hop for step in self.steps if step.peers), None)  # of what leaves after an arrival
        # The stop of an arrival with this hop from this peer.
        self.positions = {(stop.hop, stop.peer): position for position, stop in enumerate(self.stops)}


class TreeMachine:
    """One rank's side of a collective on the tree. Segments are independent, each at a stop of its own."""

    overwrites_sent = True  # the total replaces the sum that was sent

    def __init__(self, schedule: TreeSchedule, *, segments: int) -> None:
        self._schedule = schedule
        self._position = [0] * segments  # the next stop of each segment
        self._missing = segments * len(schedule.stops)

    @property
    def done(self) -> bool:
        return self._missing == 0

    def begin(self) -> Iterable[tuple[int, Script]]:
        return [(segment, self._schedule.departure) for segment in range(len(self._position))]

    def expects(self, peer: int, segment: int, hop: int) -> bool:
        if segment >= len(self._position):
            return False
        return self._schedule.positions.get((hop, peer), -1) >= self._position[segment]

    def combines(self, hop: int) -> bool:
        return hop != self._schedule.last_hop

    def is_partial(self, hop: int) -> bool:
        return hop in self._schedule.partial_hops

    def arrive(self, segment: int, hop: int) -> Script:
        stop = self._schedule.stops[self._position[segment]]
        if stop.hop != hop:
            return ()
        self._position[segment] += 1
        self._missing -= 1
        return stop.script

    def waiting_for(self) -> Sequence[int]:
        stops = self._schedule.stops
        if len(self._position) == 1:
            return () if self.done else (stops[self._position[0]].peer,)
        return sorted({stops[position].peer for position in self._position if position < len(stops)})
