"""What a seed means: how large the ring is, who calls what, what the network is like and what goes wrong."""

from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from random import Random

from ringwide.simulator.calls import LARGE, CodecSettings, SimulatedCall, draw_call, draw_calls, draw_codec_settings
from ringwide.simulator.host import Conditions, draw_conditions

SUSPECT_SECONDS = 1.0
"""Of a rank that is waited for, silence that is longer means that it is lost."""
TIMEOUT_SECONDS = 4.0
"""Far longer than any simulated way or wait: a collective that times out has stalled."""

_SOON, _SUSPECTED, _LATE, _NEVER = 0.4, 2.0, 7.0, inf
"""When a hole or a freeze ends: before anybody minds, when others have given up, when they are gone, or not at all."""
_SECOND_SHARE = 0.4


class FaultKind(Enum):
    """What goes wrong."""

    NONE = "none"
    MISMATCH = "mismatch"  # some ranks call something else
    ABORT = "abort"  # a rank gives up on a collective
    KILL = "kill"  # all connections of a rank end
    LEAVE = "leave"  # a rank says goodbye while the others go on
    RESET = "reset"  # connections of two ranks break, and one end learns of it, or both
    HOLE = "hole"  # what is sent does not arrive, one way or both, on one link or on all of a rank
    FREEZE = "freeze"  # a rank does nothing, while its connections stay open
    COMPUTE = "compute"  # a rank reads nothing for a while, and answers questions whether it lives
    LATE = "late"  # a rank makes a call late, or not at all
    DAMAGE = "damage"  # a frame is repeated, overtaken, of an old epoch, or has a flipped bit


class Damage(Enum):
    """What becomes of a frame."""

    REPEATED = "repeated"
    SWAPPED = "swapped"
    STALE = "stale"  # one of an old epoch comes before it
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
    """One fault: it strikes `rank`, `delay` after its call number `call`; a second one, `delay` after the first."""

    kind: FaultKind
    rank: int
    peer: int  # at the other end of what fails
    call: int
    delay: float
    abrupt: bool  # a kill in which even what has left is lost, or giving up before having begun
    wide: bool  # a reset of all lanes of the link, a hole around the rank
    outward: bool  # the peer does not hear the rank, or learns of the reset
    inward: bool  # the rank does not hear the peer, or learns of the reset
    lasts: float
    damage: Damage
    odd: frozenset[int]  # the ranks that call `other`
    other: SimulatedCall

    def skips(self, rank: int, call: int) -> bool:
        return self.kind is FaultKind.ABORT and self.abrupt and (self.rank, self.call) == (rank, call)

    def lateness(self, rank: int, call: int) -> float:
        """How much later than usual a rank makes a call."""
        return self.lasts if self.kind is FaultKind.LATE and (self.rank, self.call) == (rank, call) else 0.0

    @property
    def garbles(self) -> bool:
        """Only a checksum tells that a number was changed on its way."""
        return self.kind is FaultKind.DAMAGE and self.damage is Damage.GARBLED

    @property
    def ends(self) -> tuple[int, int]:
        return self.rank, self.peer

    @property
    def cuts(self) -> bool:
        """Ranks are lost to each other."""
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
    )  # mostly in time
    if kind is FaultKind.DAMAGE:
        delay *= 0.2  # there must be frames to come
    other = calls[call]
    while kind is FaultKind.MISMATCH and other.request == calls[call].request:
        other = draw_call(rng, size, codec_settings)
    return _fault(rng, size, kind, call, delay, other)


def _second(rng: Random, size: int, conditions: Conditions, first: Fault) -> Fault:
    """While the first one is being told, or while others are waiting to be sure of it."""
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
"""Small rings are the fastest to try; three ranks are the fewest of which one may hear of a loss from another."""
_MOST_THAT_ENCODE, _MOST_THAT_TRY = 8, 4
"""Their jobs take time, and with `auto` they make many calls."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One life of a ring."""

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
    leave_after_loss: bool  # ranks leave when they have lost another
    copies_sends: bool  # connections copy what is sent before it leaves, as those that encrypt or share memory

    @property
    def fault(self) -> Fault:
        """The first one, which may be none."""
        return self.faults[0]

    @property
    def checks_feedback(self) -> bool:
        """Every call of a bucket has error feedback, as no other one is under way; and all ranks succeed, or none."""
        requests = {call.request for call in self.calls}
        apart = len(requests) == len(self.calls) or all(call.awaited for call in self.calls)
        harmless = len(self.faults) == 1 and self.fault.kind in (FaultKind.NONE, FaultKind.MISMATCH)
        return self.codec_settings.feedback and apart and harmless

    @property
    def depends_on_time(self) -> bool:
        """A lossy codec or its feedback is used in some calls, but which ones is a matter of time."""
        return self.codec_settings.lossy and (
            self.codec_settings.codec == "auto" or (self.codec_settings.feedback and not self.checks_feedback)
        )

    def leaves(self, rank: int) -> bool:
        """Does this rank say goodbye when its calls have ended?"""
        fault = self.fault
        if fault.kind in (FaultKind.LEAVE, FaultKind.LATE) and fault.rank == rank:
            return fault.kind is FaultKind.LEAVE or (self.leave_when_done and fault.lasts < inf)
        return self.leave_when_done

    @property
    def kills_while_leaving(self) -> bool:
        """A kill of one that has said goodbye, and has perhaps not got rid of everything."""
        return self.fault.kind is FaultKind.KILL and self.leave_when_done

    def calls_of(self, rank: int) -> list[SimulatedCall]:
        """What one rank calls."""
        calls, fault = list(self.calls), self.fault
        if fault.kind is FaultKind.MISMATCH and rank in fault.odd:
            calls[fault.call] = fault.other
        if fault.kind is FaultKind.LEAVE and rank == fault.rank:
            del calls[fault.call + 1 :]
        if fault.lateness(rank, fault.call) == inf:
            del calls[fault.call :]
        return calls


def scenario_of(seed: int) -> Scenario:
    """Draw everything from the seed."""
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
    most = 16 if not codec_settings.encodes else _MOST_THAT_TRY if codec_settings.codec == "auto" else _MOST_THAT_ENCODE
    size: int = rng.choice(_ODDS_OF_SIZES)
    return size if size <= most else 2 + size % 3


def _segment_bytes(size: int, codec_settings: CodecSettings) -> tuple[int, ...]:
    if codec_settings.encodes:
        return 128, 256, 512
    return (8, 20, 64, 256) if size < LARGE else (20, 64, 256)
