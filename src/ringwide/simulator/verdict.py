"""Which ends a call may have, given what went wrong."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf

import numpy as np

from ringwide.collectives.deadlines import TICK_SECONDS
from ringwide.collectives.peer_loss import GOODBYE_GRACE_SECONDS
from ringwide.compression.codecs.base import Array
from ringwide.compression.feedback import FeedbackStore
from ringwide.errors import (
    CollectiveAborted,
    CollectiveMismatch,
    CollectiveTimeout,
    PeerLeft,
    PeerLost,
    RemoteProtocolError,
    RingwideError,
)
from ringwide.simulator.calls import SimulatedMemory
from ringwide.simulator.scenario import SUSPECT_SECONDS, Damage, Fault, FaultKind, Scenario

_ROUNDING = 1e-3
"""Numbers are near 1, and at most a few hundred are in one sum."""


class FeedbackLedger:
    """Of every bucket that a codec may change: what was brought and has not come out."""

    def __init__(self) -> None:
        self._missing: dict[str, Array] = {}
        self._noted: set[tuple[int, str, int, int]] = set()

    def note(self, index: int, memory: SimulatedMemory) -> None:
        """A call has succeeded on a rank. What all ranks get counts once."""
        for name, count, share, missing in memory.losses():
            entry = index, name, share.start, share.stop
            if entry not in self._noted:
                self._noted.add(entry)
                self._missing.setdefault(name, np.zeros(count))[share] += missing

    def mistakes(self, stores: Iterable[FeedbackStore]) -> Iterator[str]:
        """Buckets of which the ranks owe something else than is missing."""
        owed: dict[str, Array] = {}
        for store in stores:
            for label, error in store.items():
                owed[label.name] = owed.get(label.name, 0) + error
        for name in {**self._missing, **owed}:
            missing, promised = self._missing.get(name, 0), owed.get(name, 0)
            if not np.allclose(missing, promised, rtol=0.0, atol=_ROUNDING):
                yield f"{name}: {missing} is missing, but {promised} is owed"


# How soon a fault must be known to all who can know of it: never only when the time of a collective is up.

_WAYS = 40
"""So many times something may cross the network, or wait for a codec, before and after somebody is suspected."""
_SUSPECTED = SUSPECT_SECONDS + TICK_SECONDS


def patience(scenario: Scenario) -> float:
    """How long after the last fault, or the last call, a collective may still fail."""
    conditions = scenario.conditions
    if may_stay_deaf(scenario):
        return inf
    return (
        max(map(_patience, scenario.faults)) + _WAYS * (conditions.latency + conditions.codec_delay) + conditions.pause
    )


def _patience(fault: Fault) -> float:
    match fault.kind:
        case FaultKind.HOLE if fault.outward != fault.inward:
            return 2 * _SUSPECTED + GOODBYE_GRACE_SECONDS  # the deaf one asks, and so is heard, until it gives up
        case FaultKind.HOLE | FaultKind.FREEZE:
            return _SUSPECTED + GOODBYE_GRACE_SECONDS
        case FaultKind.COMPUTE:
            return fault.lasts + 2 * _SUSPECTED + GOODBYE_GRACE_SECONDS  # a second fault waits for it
        case FaultKind.LATE:
            return inf if fault.lasts == inf else fault.lasts
        case FaultKind.DAMAGE if fault.damage is Damage.SWAPPED:
            return inf
    return 2 * TICK_SECONDS + GOODBYE_GRACE_SECONDS  # who is not told of a reset learns of it when it asks


def woken_at(rank: int, injected: Iterable[tuple[float, Fault]]) -> float:
    """When a rank that was frozen went on."""
    return max((time + fault.lasts for time, fault in injected if _freezes(fault, rank)), default=0.0)


def _freezes(fault: Fault, rank: int) -> bool:
    return fault.kind in (FaultKind.FREEZE, FaultKind.COMPUTE) and fault.rank == rank


def must_fail(fault: Fault, call: int) -> bool:
    """No rank can have the result of this call: not all took part in it."""
    match fault.kind:
        case FaultKind.MISMATCH:
            return call == fault.call
        case FaultKind.LEAVE:
            return call > fault.call
        case FaultKind.LATE:
            return call >= fault.call and fault.lasts == inf
    return False


def explains(fault: Fault, rank: int, call: int, error: RingwideError, *, second: bool) -> bool:
    """May a fault end a call on a rank with this error? Whoever is named must have to do with it."""
    match fault.kind:
        case FaultKind.MISMATCH:
            return call == fault.call and isinstance(error, CollectiveMismatch)
        case FaultKind.ABORT:
            if isinstance(error, PeerLeft):  # it was about to leave, and its goodbye says as much
                return error.rank == fault.rank and (second or call >= fault.call)
            by_it = isinstance(error, CollectiveAborted) and error.by == fault.rank
            return by_it and (second or call == fault.call)
        case FaultKind.LEAVE:
            return call > fault.call and isinstance(error, PeerLeft) and error.rank == fault.rank
        case FaultKind.LATE:
            timed_out = isinstance(error, CollectiveTimeout) and fault.rank in error.waiting_for
            return timed_out and must_fail(fault, call)
        case FaultKind.DAMAGE:
            return _explained_by_damage(fault, rank, error)
        case FaultKind.FREEZE if rank == fault.rank:
            return isinstance(error, PeerLost | CollectiveTimeout)  # it slept while others decided
        case FaultKind.HOLE if rank == fault.rank and fault.wide:
            return isinstance(error, PeerLost)  # whoever hears of nobody may name anybody
        case FaultKind.KILL | FaultKind.FREEZE:
            return isinstance(error, PeerLost) and error.rank == fault.rank
        case FaultKind.HOLE if fault.wide:
            return isinstance(error, PeerLost) and error.rank == fault.rank
        case FaultKind.HOLE | FaultKind.RESET:
            return isinstance(error, PeerLost) and error.rank in fault.ends
    return False


def _explained_by_damage(fault: Fault, rank: int, error: RingwideError) -> bool:
    """Who gets a damaged frame says so; the others hear that one of the two ends is lost."""
    if isinstance(error, CollectiveTimeout):
        return fault.damage is Damage.SWAPPED  # a paused lane may have what is needed behind what is not
    if isinstance(error, RemoteProtocolError):
        return rank == fault.peer
    return isinstance(error, PeerLost) and error.rank in fault.ends


def may_stay_deaf(scenario: Scenario) -> bool:
    """Of two ranks one alone is told of a reset, and stays without a word: there is nobody else to tell the other.

    One that computes meanwhile may find all that it needs in the connection when it goes on. Then it has no reason to
    leave.
    """
    one_sided = any(fault.kind is FaultKind.RESET and fault.outward != fault.inward for fault in scenario.faults)
    leave_after_loss = scenario.leave_after_loss and scenario.fault.kind is not FaultKind.COMPUTE
    return scenario.size == 2 and one_sided and not (leave_after_loss or scenario.leave_when_done)


def is_deaf(scenario: Scenario, error: RingwideError | None) -> bool:
    return isinstance(error, CollectiveTimeout) and may_stay_deaf(scenario)


def follows(error: RingwideError, faults: Sequence[Fault], left: Sequence[bool]) -> bool:
    """Somebody left the ring because of a fault, and others hear of that first."""
    serious = any(fault.cuts or fault.kind in (FaultKind.LEAVE, FaultKind.DAMAGE) for fault in faults)
    return serious and isinstance(error, PeerLeft) and left[error.rank]
