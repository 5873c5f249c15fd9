"""How a fault strikes."""

from collections.abc import Iterator
from math import inf

from ringwide.simulator.faults import Fault, FaultKind
from ringwide.simulator.lane import SimulatedLane
from ringwide.simulator.network import Network

_EXPRESS_SHARE = 0.5
"""Of resets of a single lane: without the express lane it is hardest to hear of them."""


def strike(network: Network, fault: Fault) -> None:
    """Let a fault of connections or of hosts happen now."""
    match fault.kind:
        case FaultKind.RESET:
            _reset(network, fault)
        case FaultKind.HOLE:
            _open_holes(network, fault)
        case FaultKind.FREEZE | FaultKind.COMPUTE:
            _freeze(network, fault)
        case FaultKind.DAMAGE:
            lanes = network.links[fault.rank][fault.peer].lanes
            used = [lane for lane in lanes if lane.used] or lanes
            used[int(network.chance() * len(used))].damage = fault.damage


def _reset(network: Network, fault: Fault) -> None:
    lanes = network.links[fault.rank][fault.peer].connections
    if not fault.wide:
        express = network.chance() < _EXPRESS_SHARE
        lanes = lanes[:1] if express else [lanes[int(network.chance() * len(lanes))]]
    for lane in lanes:
        if fault.inward:
            network.clock.call_later(network.delay(), lane.break_off)
        if fault.outward:
            network.clock.call_later(network.delay(), lane.other.break_off)


def _open_holes(network: Network, fault: Fault) -> None:
    for lane in _ways(network, fault):
        lane.open_hole()
        if fault.lasts < inf:
            network.clock.call_later(fault.lasts, lane.close_hole)


def _ways(network: Network, fault: Fault) -> Iterator[SimulatedLane]:
    peers = network.links[fault.rank] if fault.wide else [fault.peer]
    for peer in peers:
        for lane in network.links[fault.rank][peer].connections:
            if fault.outward:
                yield lane
            if fault.inward:
                yield lane.other


def _freeze(network: Network, fault: Fault) -> None:
    host, computing = network.hosts[fault.rank], fault.kind is FaultKind.COMPUTE
    host.freeze(computing=computing)
    if fault.lasts < inf:
        network.clock.call_later(fault.lasts, lambda: host.thaw(computing=computing))
