"""Verdict on the end of a call: which errors the faults of a scenario may cause, and how soon."""

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


def must_fail(fault: Fault, call: int) -> bool:
    """Whether no rank can have the result of this call, as not all took part in it."""
    match fault.kind:
        case FaultKind.MISMATCH:
            return call == fault.call
        case FaultKind.LEAVE:
            return call > fault.call
        case FaultKind.LATE:
            return call >= fault.call and fault.lasts == inf
    return False


def explains(fault: Fault, rank: int, call: int, error: RingwideError, *, second: bool) -> bool:
    """Whether a fault may end a call on a rank with this error. The rank it names must be involved."""
    match fault.kind:
        case FaultKind.MISMATCH:
            return call == fault.call and isinstance(error, CollectiveMismatch)
        case FaultKind.ABORT:
            if isinstance(error, PeerLeft):  # it was about to leave, and its goodbye came first
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
            return isinstance(error, PeerLost | CollectiveTimeout)  # it was frozen while others decided
        case FaultKind.HOLE if rank == fault.rank and fault.wide:
            return isinstance(error, PeerLost)  # a rank that hears nobody may name anybody
        case FaultKind.KILL | FaultKind.FREEZE:
            return isinstance(error, PeerLost) and error.rank == fault.rank
        case FaultKind.HOLE if fault.wide:
            return isinstance(error, PeerLost) and error.rank == fault.rank
        case FaultKind.HOLE | FaultKind.RESET:
            return isinstance(error, PeerLost) and error.rank in fault.ends
    return False


def _explained_by_damage(fault: Fault, rank: int, error: RingwideError) -> bool:
    """The receiver of a damaged frame says so; the others are told that one of the two ends is lost."""
    if isinstance(error, CollectiveTimeout):
        return fault.damage is Damage.SWAPPED  # a paused lane may hold a needed frame behind another
    if isinstance(error, RemoteProtocolError):
        return rank == fault.peer
    return isinstance(error, PeerLost) and error.rank in fault.ends


def may_stay_deaf(scenario: Scenario) -> bool:
    """Whether one of two ranks may never learn of a reset: only the other was told, and it stays without a word.

    A rank that computes meanwhile may find all it needs in the connection afterwards, and then has no reason to leave.
    """
    one_sided = any(fault.kind is FaultKind.RESET and fault.outward != fault.inward for fault in scenario.faults)
    leave_after_loss = scenario.leave_after_loss and scenario.fault.kind is not FaultKind.COMPUTE
    return scenario.size == 2 and one_sided and not (leave_after_loss or scenario.leave_when_done)


def is_deaf(scenario: Scenario, error: RingwideError | None) -> bool:
    return isinstance(error, CollectiveTimeout) and may_stay_deaf(scenario)


def follows(error: RingwideError, faults: Sequence[Fault], left: Sequence[bool]) -> bool:
    """Whether the error is that a rank left because of a fault, of which others learn first."""
    serious = any(fault.cuts or fault.kind in (FaultKind.LEAVE, FaultKind.DAMAGE) for fault in faults)
    return serious and isinstance(error, PeerLeft) and left[error.rank]


def was_busy(rank: int, error: RingwideError, faults: Sequence[Fault]) -> bool:
    """Whether others may have given up on a rank while it computed and a second fault cut it off.

    Whoever did has closed its connections by the time it looks at them again.
    """
    computed = any(fault.kind is FaultKind.COMPUTE and fault.rank == rank for fault in faults)
    return computed and any(fault.cuts and rank in fault.ends for fault in faults) and isinstance(error, PeerLost)


# -- deadlines: all ranks that can learn of a fault must do so before a collective times out

_CROSSINGS = 40
"""Number of network crossings or codec waits allowed around a suspicion."""
_SUSPECTED = SUSPECT_SECONDS + TICK_SECONDS


def patience(scenario: Scenario) -> float:
    """Time after the last fault or the last call in which a collective may still fail."""
    conditions = scenario.conditions
    if may_stay_deaf(scenario):
        return inf
    return (
        max(map(_patience, scenario.faults))
        + _CROSSINGS * (conditions.latency + conditions.codec_delay)
        + conditions.pause
    )


def _patience(fault: Fault) -> float:
    match fault.kind:
        case FaultKind.HOLE if fault.outward != fault.inward:
            return (
                2 * _SUSPECTED + GOODBYE_GRACE_SECONDS
            )  # the deaf rank is heard until it gives up, as it sends heartbeats
        case FaultKind.HOLE | FaultKind.FREEZE:
            return _SUSPECTED + GOODBYE_GRACE_SECONDS
        case FaultKind.COMPUTE:
            return fault.lasts + 2 * _SUSPECTED + GOODBYE_GRACE_SECONDS  # a second fault is noticed after it
        case FaultKind.LATE:
            return inf if fault.lasts == inf else fault.lasts
        case FaultKind.DAMAGE if fault.damage is Damage.SWAPPED:
            return inf
    return 2 * TICK_SECONDS + GOODBYE_GRACE_SECONDS  # a rank that is not told of a reset learns of it by its heartbeat


def woken_at(rank: int, injected: Iterable[tuple[float, Fault]]) -> float:
    """Time at which a frozen rank continued."""
    return max((time + fault.lasts for time, fault in injected if _freezes(fault, rank)), default=0.0)


def _freezes(fault: Fault, rank: int) -> bool:
    return fault.kind in (FaultKind.FREEZE, FaultKind.COMPUTE) and fault.rank == rank


_ROUNDING = 1e-3
"""Tolerance: numbers are near 1, and at most a few hundred are in one sum."""


class FeedbackLedger:
    """For every bucket that a codec may change: the sum of inputs that is missing from the results."""

    def __init__(self) -> None:
        self._missing: dict[str, Array] = {}
        self._noted: set[tuple[int, str, int, int]] = set()

    def note(self, index: int, memory: SimulatedMemory) -> None:
        """Record a call that has succeeded on a rank. A result that all ranks get counts once."""
        for name, count, share, missing in memory.losses():
            entry = index, name, share.start, share.stop
            if entry not in self._noted:
                self._noted.add(entry)
                self._missing.setdefault(name, np.zeros(count))[share] += missing

    def mistakes(self, stores: Iterable[FeedbackStore]) -> Iterator[str]:
        """Buckets for which the error feedback of the ranks does not equal what is missing."""
        owed: dict[str, Array] = {}
        for store in stores:
            for label, error in store.items():
                owed[label.name] = owed.get(label.name, 0) + error
        for name in {**self._missing, **owed}:
            missing, promised = self._missing.get(name, 0), owed.get(name, 0)
            if not np.allclose(missing, promised, rtol=0.0, atol=_ROUNDING):
                yield f"{name}: {missing} is missing, but {promised} is owed"
