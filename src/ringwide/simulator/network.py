"""Network between the simulated ranks: links, lanes, hosts and clock, and a log of all that crosses it."""

from collections.abc import Callable, Collection, Sequence
from random import Random
from struct import Struct

from ringwide.collectives.bucket_operation import SendOwner
from ringwide.collectives.dispatcher import Dispatcher
from ringwide.collectives.plan import Planner
from ringwide.protocol.frame import HEADER_BYTES
from ringwide.protocol.heartbeat import HEARTBEAT_LANE
from ringwide.simulator.host import Host, VirtualClock
from ringwide.simulator.lane import SimulatedLane
from ringwide.simulator.scenario import Scenario
from ringwide.transport.link import EndingLink

_ENTRY = Struct("<dBBBI")


class SimulatedLink(EndingLink):
    """All lanes from one rank to another. The heartbeat lane carries no frames: it ends with the rank itself."""

    def __init__(
        self,
        peer: int,
        lanes: Sequence[SimulatedLane],
        heartbeat: SimulatedLane,
        on_ended: Callable[[int], None],
    ) -> None:
        super().__init__(peer, on_ended)
        self.lanes, self.heartbeat = lanes, heartbeat
        for lane in lanes:
            lane.on_end = self.lane_has_ended

    @property
    def connections(self) -> list[SimulatedLane]:
        return [*self.lanes, self.heartbeat]

    def all_lanes(self) -> Collection[SimulatedLane]:
        return self.lanes

    def send_express(self, header: bytes, payload: memoryview) -> None:
        self.lanes[0].send(header, payload, None, 0)

    def send_bulk(self, header: bytes, payload: memoryview, *, stripe: int, owner: SendOwner | None, key: int) -> None:
        self.lanes[1 + stripe % (len(self.lanes) - 1)].send(header, payload, owner, key)

    def reserve_bulk(self, nbytes: int, *, stripe: int) -> memoryview | None:
        return None

    def send_reserved(self, header: bytes, *, stripe: int) -> None:
        raise NotImplementedError

    def tell(self, frame: bytes) -> None:
        self.lanes[0].send(frame[:HEADER_BYTES], frame[HEADER_BYTES:], None, 0)

    def forget(self, key: int) -> None:
        for lane in self.lanes[1:]:
            lane.forget(key)


class Network:
    """Links between all ranks, on one clock. `draw` gives random numbers from 0 to 1."""

    def __init__(
        self, scenario: Scenario, planners: Sequence[Planner], rng: Random, report: Callable[[str], None]
    ) -> None:
        self.scenario, self.draw, self.report = scenario, rng.random, report
        self.over: set[tuple[int, int]] = set()  # (rank, key of a collective) whose memory belongs to the caller again
        self.clock = VirtualClock()
        self.hosts = [Host(self.clock, rng) for _ in planners]
        self.dispatchers: list[Dispatcher] = []
        self.log = bytearray()
        self._latency = scenario.conditions.latency
        self.links = [
            {peer: self._link(rank, peer, planner) for peer in range(scenario.size) if peer != rank}
            for rank, planner in enumerate(planners)
        ]
        for rank, links in enumerate(self.links):
            for peer, link in links.items():
                for lane, other in zip(link.connections, self.links[peer][rank].connections, strict=True):
                    lane.other = other
        self._lanes = [[lane for link in links.values() for lane in link.connections] for links in self.links]

    def _link(self, rank: int, peer: int, planner: Planner) -> SimulatedLink:
        """Link as in a real ring: an express and a heartbeat lane to every peer, bulk lanes where they are needed."""
        lanes = 1 + self.scenario.lanes if planner.exchanges_bulk(peer) else 1
        heartbeat = self._lane(rank, peer, HEARTBEAT_LANE)

        def stream_ended(peer: int) -> None:
            self.dispatchers[rank].peer_loss.stream_ended(peer)

        return SimulatedLink(peer, [self._lane(rank, peer, index) for index in range(lanes)], heartbeat, stream_ended)

    def _lane(self, rank: int, peer: int, index: int) -> SimulatedLane:
        return SimulatedLane(self, rank, peer, index)

    def lanes_of(self, rank: int) -> list[SimulatedLane]:
        return self._lanes[rank]

    def delay(self) -> float:
        """Random delay: mostly short, sometimes as long as the latency."""
        return self._latency * self.draw() ** 3

    def note(self, lane: SimulatedLane, count: int) -> None:
        self.log += _ENTRY.pack(self.clock.now, lane.rank, lane.peer, lane.index, count)
