"""What a seed means: how large the ring is, who calls what, what the network is like and what goes wrong."""

from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from random import Random

from ringwide.simulator.calls import LARGE, CodecSettings, SimulatedCall, call_by, calls_by, codec_jobs_by
from ringwide.simulator.host import Weather, weather_by

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


def faults_by(
    chance: Random, size: int, calls: tuple[SimulatedCall, ...], weather: Weather, codec_jobs: CodecSettings
) -> tuple[Fault, ...]:
    first = _first(chance, size, calls, weather, codec_jobs)
    if first.kind is FaultKind.NONE or chance.random() > _SECOND_SHARE:
        return (first,)
    return first, _second(chance, size, weather, first)


def _first(
    chance: Random, size: int, calls: tuple[SimulatedCall, ...], weather: Weather, codec_jobs: CodecSettings
) -> Fault:
    kind = chance.choice(_ODDS)
    call = chance.randrange(len(calls))
    delay = chance.random() ** 2 * (2 * size * (weather.latency + weather.toil) + weather.pause)  # mostly in time
    if kind is FaultKind.DAMAGE:
        delay *= 0.2  # there must be frames to come
    other = calls[call]
    while kind is FaultKind.MISMATCH and other.request == calls[call].request:
        other = call_by(chance, size, codec_jobs)
    return _fault(chance, size, kind, call, delay, other)


def _second(chance: Random, size: int, weather: Weather, first: Fault) -> Fault:
    """While the first one is being told, or while others are waiting to be sure of it."""
    longest = chance.choice((8 * weather.latency, SUSPECT_SECONDS if first.cuts else TIMEOUT_SECONDS / 2))
    kind = chance.choice(_SECONDS)
    return replace(_fault(chance, size, kind, first.call, chance.random() * longest, first.other), odd=frozenset())


def _fault(chance: Random, size: int, kind: FaultKind, call: int, delay: float, other: SimulatedCall) -> Fault:
    rank = chance.randrange(size)
    outward, inward = chance.choice(((True, True), (True, True), (True, False), (False, True)))
    if kind is FaultKind.LATE:
        lasts = chance.choice((_SUSPECTED, _SUSPECTED, _NEVER))
    elif kind is FaultKind.COMPUTE:
        lasts = chance.choice((_SOON, _SUSPECTED))
    else:
        lasts = chance.choice((_SOON, _SUSPECTED, _LATE, _NEVER, _NEVER))
    return Fault(
        kind=kind,
        rank=rank,
        peer=(rank + chance.randrange(1, size)) % size,
        call=call,
        delay=delay,
        abrupt=chance.random() < 0.5,
        wide=chance.random() < 0.4,
        outward=outward,
        inward=inward,
        lasts=lasts,
        damage=chance.choice(tuple(Damage)),
        odd=_odd(chance, size),
        other=other,
    )


def _odd(chance: Random, size: int) -> frozenset[int]:
    odd = frozenset(rank for rank in range(size) if chance.random() < 0.3)
    return odd if odd and len(odd) < size else frozenset({chance.randrange(size)})


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
    codec_jobs: CodecSettings
    calls: tuple[SimulatedCall, ...]
    faults: tuple[Fault, ...]
    weather: Weather
    peer_loss: bool  # ranks leave when their calls have ended
    resigning: bool  # ranks leave when they have lost another
    keeping: bool  # connections copy what is sent before it leaves, as those that encrypt or share memory

    @property
    def fault(self) -> Fault:
        """The first one, which may be none."""
        return self.faults[0]

    @property
    def keeps_books(self) -> bool:
        """Every call of a bucket has error feedback, as no other one is under way; and all ranks succeed, or none."""
        requests = {call.request for call in self.calls}
        apart = len(requests) == len(self.calls) or all(call.awaited for call in self.calls)
        harmless = len(self.faults) == 1 and self.fault.kind in (FaultKind.NONE, FaultKind.MISMATCH)
        return self.codec_jobs.feedback and apart and harmless

    @property
    def depends_on_time(self) -> bool:
        """A lossy codec or its feedback is used in some calls, but which ones is a matter of time."""
        return self.codec_jobs.lossy and (
            self.codec_jobs.codec == "auto" or (self.codec_jobs.feedback and not self.keeps_books)
        )

    def leaves(self, rank: int) -> bool:
        """Does this rank say goodbye when its calls have ended?"""
        fault = self.fault
        if fault.kind in (FaultKind.LEAVE, FaultKind.LATE) and fault.rank == rank:
            return fault.kind is FaultKind.LEAVE or (self.peer_loss and fault.lasts < inf)
        return self.peer_loss

    @property
    def strikes_on_the_way_out(self) -> bool:
        """A kill of one that has said goodbye, and has perhaps not got rid of everything."""
        return self.fault.kind is FaultKind.KILL and self.peer_loss

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
    chance = Random(seed)
    codec_jobs = codec_jobs_by(chance)
    size = _size(chance, codec_jobs)
    calls = calls_by(chance, size, codec_jobs)
    weather = weather_by(chance, codec_jobs)
    faults = faults_by(chance, size, calls, weather, codec_jobs)
    return Scenario(
        size=size,
        algorithm=chance.choice(_CAN_ENCODE if codec_jobs.encodes else _ALGORITHMS),
        fanout=chance.randint(1, size - 1),
        epoch=chance.choice((0, 7)),
        sealed=chance.random() < 0.5 or any(fault.garbles for fault in faults),
        segment_bytes=chance.choice(_segment_bytes(size, codec_jobs)),
        tree_bytes=min(chance.choice((0, 32, 128)), codec_jobs.threshold_bytes if codec_jobs.encodes else 128),
        express_bytes=chance.choice((8, 32, 4096)),
        staging_bytes=chance.choice((0, 60, 400)),
        lanes=chance.randint(1, 3 if size < LARGE else 2),
        codec_jobs=codec_jobs,
        calls=calls,
        faults=faults,
        weather=weather,
        peer_loss=chance.random() < 0.4,
        resigning=chance.random() < 0.6,
        keeping=chance.random() < 0.4,
    )


def _size(chance: Random, codec_jobs: CodecSettings) -> int:
    most = 16 if not codec_jobs.encodes else _MOST_THAT_TRY if codec_jobs.codec == "auto" else _MOST_THAT_ENCODE
    size: int = chance.choice(_ODDS_OF_SIZES)
    return size if size <= most else 2 + size % 3


def _segment_bytes(size: int, codec_jobs: CodecSettings) -> tuple[int, ...]:
    if codec_jobs.encodes:
        return 128, 256, 512
    return (8, 20, 64, 256) if size < LARGE else (20, 64, 256)
