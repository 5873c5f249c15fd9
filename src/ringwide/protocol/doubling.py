"""Recursive doubling: few hops, for buckets so small that hops are all they cost.

In round k, ranks whose numbers differ in bit k - 1 swap their sums, so after log2(size) rounds everyone has the total:
log2(size) hops instead of the ring's 2 (size - 1), for log2(size) times the bytes. When size is not a power of two,
the ranks beyond the largest power of two first give their numbers to a partner (hop 0) and get the total at the end.

Two ranks that swap must compute the same bits from the same two sums, so the lower rank's sum always stands first.
A partner may be a round ahead; its frame then waits until this rank gets there.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ringwide.protocol.instruction import Combine, Finish, Keep, Script, Send


class Stop(NamedTuple):
    """One arrival that a rank needs, and what follows from it."""

    hop: int
    peer: int
    script: Script


class Step(NamedTuple):
    """A script as it is carried out on the only segment of a small bucket: with the arrival, with the total, and then
    what leaves, all of it at one hop."""

    combines: bool
    arrival_first: bool
    keeps: bool
    finishes: bool
    hop: int
    peers: tuple[int, ...]


def step_of(script: Script) -> Step:
    combine = next((instruction for instruction in script if isinstance(instruction, Combine)), None)
    sends = [instruction for instruction in script if isinstance(instruction, Send)]
    return Step(
        combines=combine is not None,
        arrival_first=combine is not None and combine.arrival_first,
        keeps=any(isinstance(instruction, Keep) for instruction in script),
        finishes=any(isinstance(instruction, Finish) for instruction in script),
        hop=sends[0].hop if sends else 0,
        peers=tuple(send.peer for send in sends),
    )


class Schedule:
    """One rank's way: what leaves at once, then stop after stop. Shared by all collectives with the same plan."""

    def __init__(self, departure: Script, stops: Sequence[Stop], last_hop: int) -> None:
        self.departure, self.stops = departure, stops
        self.first_step, self.steps = step_of(departure), [step_of(stop.script) for stop in stops]
        self.last_hop = last_hop  # at which totals travel
        # Which stop an arrival with this hop, from this peer, is.
        self.positions = {(stop.hop, stop.peer): position for position, stop in enumerate(stops)}


def doubling_schedule(*, rank: int, size: int) -> Schedule:
    rounds = size.bit_length() - 1
    core, last_hop = 1 << rounds, rounds + 1  # at which the ranks beyond the core get the total
    if rank >= core:
        return Schedule((Send(0, rank - core),), [Stop(last_hop, rank - core, (Keep(),))], last_hop)
    outsider = rank + core if rank + core < size else None
    swaps = [(round_, rank ^ (1 << (round_ - 1))) for round_ in range(1, rounds + 1)]
    route = swaps if outsider is None else [(0, outsider), *swaps]
    ending: Script = (Finish(),) if outsider is None else (Finish(), Send(last_hop, outsider))
    sends = [(Send(hop, peer),) for hop, peer in route[1:]]
    stops = [
        Stop(hop, peer, (Combine(peer < rank), *then))
        for (hop, peer), then in zip(route, [*sends, ending], strict=False)
    ]
    return Schedule((Send(*swaps[0]),) if outsider is None and swaps else () if swaps else ending, stops, last_hop)


class StopsMachine:
    """One rank's side, for recursive doubling and the star. Segments are independent, each at a stop of its own."""

    overwrites_sent = True  # the next round's sum replaces the one that was sent

    def __init__(self, schedule: Schedule, *, segments: int) -> None:
        self._schedule = schedule
        self._position = [0] * segments  # the stop that is next for each segment
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
