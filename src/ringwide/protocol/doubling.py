"""Recursive doubling: few hops, for buckets so small that hops are all they cost.

In round k, ranks whose numbers differ in bit k - 1 swap their sums, so after log2(size) rounds everyone has the total:
log2(size) hops instead of the ring's 2 (size - 1), for log2(size) times the bytes. When size is not a power of two,
the ranks beyond the largest power of two first give their numbers to a partner (hop 0) and get the total at the end.

Two ranks that swap must compute the same bits from the same two sums, so the lower rank's sum always stands first.
A partner may be a round ahead; its frame then waits until this rank gets there.
"""

from collections.abc import Iterable, Sequence

from ringwide.protocol.instruction import Combine, Finish, Instruction, Keep, Send


class DoublingMachine:
    """One rank's side. Segments are independent of each other; each has its own round."""

    overwrites_sent = True  # the next round's sum replaces the one that was sent

    def __init__(self, *, rank: int, size: int, segments: int) -> None:
        self._rank, self._segments = rank, segments
        self._outsider: int | None = None  # the rank beyond the core that this rank serves
        rounds = size.bit_length() - 1
        core = 1 << rounds
        self._last_hop = rounds + 1  # at which the ranks beyond the core get the total
        self._route = self._route_of(rank, core, rounds, size)
        self._position = [0] * segments  # how many stops of the route each segment has behind it
        self._early: list[set[int]] = [set() for _ in range(segments)]
        self._missing = segments * len(self._route)

    def _route_of(self, rank: int, core: int, rounds: int, size: int) -> list[tuple[int, int]]:
        """The arrivals this rank needs, in order: (hop, from whom)."""
        if rank >= core:
            return [(self._last_hop, rank - core)]
        swaps = [(round_, rank ^ (1 << (round_ - 1))) for round_ in range(1, rounds + 1)]
        if rank + core >= size:
            return swaps
        self._outsider = rank + core
        return [(0, self._outsider), *swaps]

    @property
    def done(self) -> bool:
        return self._missing == 0

    def begin(self) -> Iterable[Instruction]:
        for segment in range(self._segments):
            if not self._route:  # alone in the ring
                yield Finish(segment)
                continue
            hop, peer = self._route[0]
            if hop == self._last_hop:
                yield Send(segment, 0, peer)
            elif hop != 0:
                yield Send(segment, hop, peer)

    def expects(self, peer: int, segment: int, hop: int) -> bool:
        if segment >= self._segments or hop in self._early[segment]:
            return False
        return (hop, peer) in self._route[self._position[segment] :]

    def combines(self, hop: int) -> bool:
        return hop != self._last_hop

    def arrive(self, segment: int, hop: int) -> Iterable[Instruction]:
        early = self._early[segment]
        early.add(hop)
        route = self._route
        while self._position[segment] < len(route) and route[self._position[segment]][0] in early:
            due, peer = route[self._position[segment]]
            early.remove(due)
            self._position[segment] += 1
            self._missing -= 1
            yield from self._advance(segment, due, peer)

    def _advance(self, segment: int, hop: int, peer: int) -> Iterable[Instruction]:
        if hop == self._last_hop:
            yield Keep(segment, hop)
            return
        yield Combine(segment, hop, peer < self._rank)
        if self._position[segment] < len(self._route):
            next_hop, partner = self._route[self._position[segment]]
            yield Send(segment, next_hop, partner)
            return
        yield Finish(segment)
        if self._outsider is not None:
            yield Send(segment, self._last_hop, self._outsider)

    def waiting_for(self) -> Sequence[int]:
        return sorted({self._route[at][1] for at in self._position if at < len(self._route)})
