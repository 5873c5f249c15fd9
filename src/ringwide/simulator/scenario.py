"""Scenario of a seed: the size of the ring, its calls, its network conditions and its faults."""

from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from random import Random

from ringwide.simulator.calls import LARGE, CodecSettings, SimulatedCall, draw_call, draw_calls, draw_codec_settings
from ringwide.simulator.host import Conditions, draw_conditions

SUSPECT_SECONDS = 1.0
"""A rank that is waited for and silent for longer is lost."""
TIMEOUT_SECONDS = 4.0
"""Far longer than any simulated delay: a collective that times out has stalled."""

_SOON, _SUSPECTED, _LATE, _NEVER = 0.4, 2.0, 7.0, inf
"""End of a hole or a freeze: before anyone notices, when others have given up, when they are gone, or never."""
_SECOND_SHARE = 0.4


class FaultKind(Enum):
    """Kind of a fault."""

    NONE = "none"
    MISMATCH = "mismatch"  # some ranks call another collective
    ABORT = "abort"  # a rank gives up on a collective
    KILL = "kill"  # all connections of a rank end
    LEAVE = "leave"  # a rank says goodbye while the others continue
    RESET = "reset"  # connections of two ranks break, and one end learns of it, or both
    HOLE = "hole"  # bytes do not arrive, one way or both, on one link or on all of a rank
    FREEZE = "freeze"  # a rank does nothing, while its connections stay open
    COMPUTE = "compute"  # a rank reads nothing for a while, but answers heartbeats
    LATE = "late"  # a rank makes a call late, or not at all
    DAMAGE = "damage"  # a frame is repeated, overtaken, of an old epoch, or has a flipped bit


class Damage(Enum):
    """Kind of damage to a frame."""

    REPEATED = "repeated"
    SWAPPED = "swapped"
    STALE = "stale"  # a frame of an old epoch comes before it
    GARBLED = "garbled"


_ODDS = (
    *[FaultKind.NONE] * 2,
    *[FaultKind.MISMATCH] * 2,
    *[FaultKind.ABORT] * 2,
    *[FaultKind.LEAVE] * 2,
    *[FaultKind.KILL] * 3,
    *[FaultKind.RESET] * 3,
    *[FaultKind.HOLE] * 3,
    *[FaultKind.FREEZE] * 3,
    *[FaultKind.COMPUTE] * 2,
    FaultKind.LATE,
    *[FaultKind.DAMAGE] * 2,
)
_SECONDS = (FaultKind.KILL, FaultKind.RESET, FaultKind.HOLE, FaultKind.FREEZE, FaultKind.DAMAGE, FaultKind.ABORT)
_CUTTING = (FaultKind.KILL, FaultKind.RESET, FaultKind.HOLE, FaultKind.FREEZE)


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault of `rank`, injected `delay` after its call number `call`; a second fault, `delay` after the first."""

    kind: FaultKind
    rank: int
    peer: int  # at the other end of the connection
    call: int
    delay: float
    abrupt: bool  # a kill that loses even bytes under way, or an abort before the start
    wide: bool  # a reset of all lanes of the link, a hole around the rank
    outward: bool  # from rank to peer: hole, or the peer learns of the reset
    inward: bool  # from peer to rank: hole, or the rank learns of the reset
    lasts: float
    damage: Damage
    odd: frozenset[int]  # ranks that call `other`
    other: SimulatedCall

    def skips(self, rank: int, call: int) -> bool:
        return self.kind is FaultKind.ABORT and self.abrupt and (self.rank, self.call) == (rank, call)

    def lateness(self, rank: int, call: int) -> float:
        """Extra delay before a rank makes a call."""
        return self.lasts if self.kind is FaultKind.LATE and (self.rank, self.call) == (rank, call) else 0.0

    @property
    def garbles(self) -> bool:
        """Whether it flips a bit, which only a checksum notices."""
        return self.kind is FaultKind.DAMAGE and self.damage is Damage.GARBLED

    @property
    def ends(self) -> tuple[int, int]:
        return self.rank, self.peer

    @property
    def cuts(self) -> bool:
        """Whether ranks lose each other."""
        return self.kind in _CUTTING


def draw_faults(
    rng: Random, size: int, calls: tuple[SimulatedCall, ...], conditions: Conditions, codec_settings: CodecSettings
) -> tuple[Fault, ...]:
    first = _first(rng, size, calls, conditions, codec_settings)
    if first.kind is FaultKind.NONE or rng.random() > _SECOND_SHARE:
        return (first,)
    return first, _second(rng, size, conditions, first)


def _first(
    rng: Random, size: int, calls: tuple[SimulatedCall, ...], conditions: Conditions, codec_settings: CodecSettings
) -> Fault:
    kind = rng.choice(_ODDS)
    call = rng.randrange(len(calls))
    delay = rng.random() ** 2 * (
        2 * size * (conditions.latency + conditions.codec_delay) + conditions.pause
    )  # mostly before the call ends
    if kind is FaultKind.DAMAGE:
        delay *= 0.2  # earlier, so that frames are left to damage
    other = calls[call]
    while kind is FaultKind.MISMATCH and other.request == calls[call].request:
        other = draw_call(rng, size, codec_settings)
    return _fault(rng, size, kind, call, delay, other)


def _second(rng: Random, size: int, conditions: Conditions, first: Fault) -> Fault:
    """Second fault: while news of the first spreads, or while ranks wait to be sure of it."""
    longest = rng.choice((8 * conditions.latency, SUSPECT_SECONDS if first.cuts else TIMEOUT_SECONDS / 2))
    kind = rng.choice(_SECONDS)
    return replace(_fault(rng, size, kind, first.call, rng.random() * longest, first.other), odd=frozenset())


def _fault(rng: Random, size: int, kind: FaultKind, call: int, delay: float, other: SimulatedCall) -> Fault:
    rank = rng.randrange(size)
    outward, inward = rng.choice(((True, True), (True, True), (True, False), (False, True)))
    if kind is FaultKind.LATE:
        lasts = rng.choice((_SUSPECTED, _SUSPECTED, _NEVER))
    elif kind is FaultKind.COMPUTE:
        lasts = rng.choice((_SOON, _SUSPECTED))
    else:
        lasts = rng.choice((_SOON, _SUSPECTED, _LATE, _NEVER, _NEVER))
    return Fault(
        kind=kind,
        rank=rank,
        peer=(rank + rng.randrange(1, size)) % size,
        call=call,
        delay=delay,
        abrupt=rng.random() < 0.5,
        wide=rng.random() < 0.4,
        outward=outward,
        inward=inward,
        lasts=lasts,
        damage=rng.choice(tuple(Damage)),
        odd=_odd(rng, size),
        other=other,
    )


def _odd(rng: Random, size: int) -> frozenset[int]:
    odd = frozenset(rank for rank in range(size) if rng.random() < 0.3)
    return odd if odd and len(odd) < size else frozenset({rng.randrange(size)})


_CAN_ENCODE = ("auto", "ring")
_ALGORITHMS = (*_CAN_ENCODE, "tree", "tree")
_ODDS_OF_SIZES: tuple[int, ...] = (*[2] * 210, *[3] * 120, *[4] * 24, *[5, 6, 7, 8] * 4, *range(9, 17))
"""Small rings are the fastest to simulate; with three ranks one can learn of a loss from another."""
_MOST_THAT_ENCODE, _MOST_WITH_AUTO = 8, 4
"""Largest rings with codecs, whose jobs take time, and with `auto`, which makes many calls."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a seed determines about one life of a ring."""

    size: int
    algorithm: str
    fanout: int  # of the tree
    epoch: int
    sealed: bool  # frames have checksums
    segment_bytes: int
    tree_bytes: int
    express_bytes: int
    staging_bytes: int
    lanes: int
    codec_settings: CodecSettings
    calls: tuple[SimulatedCall, ...]
    faults: tuple[Fault, ...]
    conditions: Conditions
    leave_when_done: bool  # ranks leave when their calls have ended
    leave_after_loss: bool  # ranks leave when they have lost a peer
    copies_sends: bool  # lanes copy payloads at once, as those that encrypt or share memory do

    @property
    def fault(self) -> Fault:
        """First fault, whose kind may be NONE."""
        return self.faults[0]

    @property
    def checks_feedback(self) -> bool:
        """Whether error feedback can be checked: no two calls of a bucket overlap, and all ranks succeed or none."""
        requests = {call.request for call in self.calls}
        separate = len(requests) == len(self.calls) or all(call.awaited for call in self.calls)
        harmless = len(self.faults) == 1 and self.fault.kind in (FaultKind.NONE, FaultKind.MISMATCH)
        return self.codec_settings.feedback and separate and harmless

    @property
    def depends_on_time(self) -> bool:
        """Whether timing decides which calls use a lossy codec or its feedback."""
        return self.codec_settings.lossy and (
            self.codec_settings.codec == "auto" or (self.codec_settings.feedback and not self.checks_feedback)
        )

    def leaves(self, rank: int) -> bool:
        """Whether this rank says goodbye when its calls have ended."""
        fault = self.fault
        if fault.kind in (FaultKind.LEAVE, FaultKind.LATE) and fault.rank == rank:
            return fault.kind is FaultKind.LEAVE or (self.leave_when_done and fault.lasts < inf)
        return self.leave_when_done

    @property
    def kills_while_leaving(self) -> bool:
        """Whether the fault kills a rank that has said goodbye and may not have sent everything."""
        return self.fault.kind is FaultKind.KILL and self.leave_when_done

    def calls_of(self, rank: int) -> list[SimulatedCall]:
        """Calls of one rank."""
        calls, fault = list(self.calls), self.fault
        if fault.kind is FaultKind.MISMATCH and rank in fault.odd:
            calls[fault.call] = fault.other
        if fault.kind is FaultKind.LEAVE and rank == fault.rank:
            del calls[fault.call + 1 :]
        if fault.lateness(rank, fault.call) == inf:
            del calls[fault.call :]
        return calls


def scenario_of(seed: int) -> Scenario:
    """Scenario drawn from a seed."""
    rng = Random(seed)
    codec_settings = draw_codec_settings(rng)
    size = _size(rng, codec_settings)
    calls = draw_calls(rng, size, codec_settings)
    conditions = draw_conditions(rng, codec_settings)
    faults = draw_faults(rng, size, calls, conditions, codec_settings)
    return Scenario(
        size=size,
        algorithm=rng.choice(_CAN_ENCODE if codec_settings.encodes else _ALGORITHMS),
        fanout=rng.randint(1, size - 1),
        epoch=rng.choice((0, 7)),
        sealed=rng.random() < 0.5 or any(fault.garbles for fault in faults),
        segment_bytes=rng.choice(_segment_bytes(size, codec_settings)),
        tree_bytes=min(rng.choice((0, 32, 128)), codec_settings.threshold_bytes if codec_settings.encodes else 128),
        express_bytes=rng.choice((8, 32, 4096)),
        staging_bytes=rng.choice((0, 60, 400)),
        lanes=rng.randint(1, 3 if size < LARGE else 2),
        codec_settings=codec_settings,
        calls=calls,
        faults=faults,
        conditions=conditions,
        leave_when_done=rng.random() < 0.4,
        leave_after_loss=rng.random() < 0.6,
        copies_sends=rng.random() < 0.4,
    )


def _size(rng: Random, codec_settings: CodecSettings) -> int:
    most = (
        16 if not codec_settings.encodes else _MOST_WITH_AUTO if codec_settings.codec == "auto" else _MOST_THAT_ENCODE
    )
    size: int = rng.choice(_ODDS_OF_SIZES)
    return size if size <= most else 2 + size % 3


def _segment_bytes(size: int, codec_settings: CodecSettings) -> tuple[int, ...]:
    if codec_settings.encodes:
        return 128, 256, 512
    return (8, 20, 64, 256) if size < LARGE else (20, 64, 256)
