"""Which ends a call may have, given what went wrong."""

from collections.abc import Sequence
from math import inf

from ringwide.errors import (
    CollectiveAborted,
    CollectiveMismatch,
    CollectiveTimeout,
    PeerLeft,
    PeerLost,
    RemoteProtocolError,
    RingwideError,
)
from ringwide.simulator.faults import Damage, Fault, FaultKind
from ringwide.simulator.scenario import Scenario


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
    resigning = scenario.resigning and scenario.fault.kind is not FaultKind.COMPUTE
    return scenario.size == 2 and one_sided and not (resigning or scenario.peer_loss)


def is_deaf(scenario: Scenario, error: RingwideError | None) -> bool:
    return isinstance(error, CollectiveTimeout) and may_stay_deaf(scenario)


def follows(error: RingwideError, faults: Sequence[Fault], left: Sequence[bool]) -> bool:
    """Somebody left the ring because of a fault, and others hear of that first."""
    serious = any(fault.cuts or fault.kind in (FaultKind.LEAVE, FaultKind.DAMAGE) for fault in faults)
    return serious and isinstance(error, PeerLeft) and left[error.rank]
