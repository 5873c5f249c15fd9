"""How soon a fault must be known to all who can know of it: never only when the time of a collective is up."""

from collections.abc import Iterable
from math import inf

from ringwide.collectives.deadlines import TICK_SECONDS
from ringwide.collectives.peer_loss import GOODBYE_GRACE_SECONDS
from ringwide.simulator.faults import SUSPECT_SECONDS, Damage, Fault, FaultKind
from ringwide.simulator.scenario import Scenario
from ringwide.simulator.verdict import may_stay_deaf

_WAYS = 40
"""So many times something may cross the network, or wait for a codec, before and after somebody is suspected."""
_SUSPECTED = SUSPECT_SECONDS + TICK_SECONDS


def patience(scenario: Scenario) -> float:
    """How long after the last fault, or the last call, a collective may still fail."""
    weather = scenario.weather
    if may_stay_deaf(scenario):
        return inf
    return max(map(_patience, scenario.faults)) + _WAYS * (weather.latency + weather.toil) + weather.pause


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


def woken_at(rank: int, struck: Iterable[tuple[float, Fault]]) -> float:
    """When a rank that was frozen went on."""
    return max((time + fault.lasts for time, fault in struck if _freezes(fault, rank)), default=0.0)


def _freezes(fault: Fault, rank: int) -> bool:
    return fault.kind in (FaultKind.FREEZE, FaultKind.COMPUTE) and fault.rank == rank
