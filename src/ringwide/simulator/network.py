"""A clock that nobody waits for, and connections whose bytes travel in pieces and at random.

Rules:
- A lane keeps the order of its bytes. Nothing is promised between lanes.
- A queued payload is read from memory at the moment it leaves, so whoever reuses that memory too early is found out.
- A connection holds `capacity_bytes` that the other side has not read; more does not leave.
- Nothing that one rank does calls another rank: everything that crosses is an event of its own.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from struct import Struct

from ringwide.collective.dispatch import Dispatcher
from ringwide.collective.operation import Owner
from ringwide.collective.plan import Planner
from ringwide.protocol.frame import HEADER_BYTES, Header
from ringwide.protocol.stream import FrameReader
from ringwide.simulator.scenario import Scenario
from ringwide.transport.scratch import Scratch

_ENTRY = Struct("<dBBBI")
_MOST_EVENTS = 300_000
"""A life that has more goes round in circles."""


class VirtualClock:
    """Runs events in the order of their times; those of the same time in the order in which they were made."""

    def __init__(self) -> None:
        self._now, self._made = 0.0, 0
        self._events: list[tuple[float, int, Callable[[], object]]] = []

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], object], /) -> None:
        self.call_at(self._now + delay, callback)

    def call_at(self, when: float, callback: Callable[[], object], /) -> None:
        self._made += 1
        heappush(self._events, (when, self._made, callback))

    def run(self) -> int:
        """Run until nothing is left to happen; returns how much happened."""
        events = self._events
        while events:
            self._now, number, callback = heappop(events)
            callback()
            if number > _MOST_EVENTS:
                raise RuntimeError("the ring is busy for ever")
        return self._made


class Parcel:
    """A queued frame: what is still to leave of it, and whose it is."""

    __slots__ = ("collective", "left", "owner", "started", "views")

    def __init__(self, views: list[bytes | memoryview], owner: Owner | None, collective: int) -> None:
        self.views, self.owner, self.collective = views, owner, collective
        self.left = sum(map(len, views))
        self.started = False

    def take(self, count: int) -> bytes:
        """The next bytes, as they are in memory now."""
        if count < self.left:
            whole = b"".join(self.views)
            taken, self.views = whole[:count], _after(self.views, count)
        else:
            taken, self.views = b"".join(self.views), []
        self.left -= count
        self.started = True
        return taken


def _after(views: list[bytes | memoryview], count: int) -> list[bytes | memoryview]:
    """What is left of some buffers after their first bytes; not a copy, it may still change."""
    rest: list[bytes | memoryview] = []
    for view in views:
        if count < len(view):
            rest.append(memoryview(view)[count:])
        count = max(0, count - len(view))
    return rest


class SimulatedLane:
    """One end of a connection. `other` is the end at the peer."""

    other: "SimulatedLane"

    def __init__(self, network: "Network", rank: int, peer: int, index: int) -> None:
        self.rank, self.peer, self.index = rank, peer, index
        self.closed = False
        scenario = network.scenario
        self._network, self._clock, self._weather = network, network.clock, scenario.weather
        self._queue: deque[Parcel] = deque()
        self._departing = False  # a departure has been arranged
        self._unread = 0  # bytes that have left here and were not read there
        self._last_arrival = 0.0
        self._finishing = False  # close when the queue is empty
        self._inbox = bytearray()
        self._ended = False  # nothing comes after the inbox
        self.scratch = Scratch()
        self._reader = FrameReader(
            landing=self._landing,
            arrived=self._arrived,
            limit_bytes=scenario.segment_bytes if index else scenario.express_bytes,
            staging_bytes=HEADER_BYTES if index else HEADER_BYTES + scenario.staging_bytes,
        )

    # -- sending

    def send(self, views: list[bytes | memoryview], owner: Owner | None, collective: int) -> None:
        if self.closed:
            return
        if owner is not None and (self.rank, collective) in self._network.over:
            self._network.report(f"rank {self.rank} sends memory of collective {collective}, which is over there")
        self._queue.append(Parcel(views if owner is not None else [b"".join(views)], owner, collective))
        if len(self._queue) > 1 or self._departing:
            return
        if self._network.chance() < self._weather.taken_at_once:
            self._depart()
        else:
            self._depart_later()

    def _depart_later(self) -> None:
        if not self._departing:
            self._departing = True
            self._clock.call_later(self._network.delay(), self._depart)

    def _depart(self) -> None:
        """The kernel takes what it has room for."""
        self._departing = False
        room = self._weather.capacity_bytes - self._unread
        if self.closed or not self._queue or room <= 0:
            return
        parcel = self._queue[0]
        self._transmit(parcel.take(min(room, self._piece_of(parcel.left))))
        if not parcel.left:
            self._queue.popleft()
            if parcel.owner is not None:
                parcel.owner.sent()
        if self._queue:
            self._depart_later()
        elif self._finishing:
            self.close()

    def _piece_of(self, count: int) -> int:
        if self._network.chance() < self._weather.split:
            return 1 + int(self._network.chance() * (count - 1))
        return count

    def _transmit(self, data: bytes) -> None:
        self._unread += len(data)
        self._clock.call_at(self._next_arrival(), lambda: self.other._deliver(data))

    def _next_arrival(self) -> float:
        self._last_arrival = max(self._last_arrival, self._clock.time() + self._network.delay())
        return self._last_arrival

    def forget(self, collective: int) -> None:
        """As a real lane does: what has not begun to leave is taken back, the rest is copied."""
        self._reader.divert(collective)
        kept: deque[Parcel] = deque()
        for parcel in self._queue:
            if parcel.owner is not None and parcel.collective == collective:
                if not parcel.started:
                    continue
                parcel.views, parcel.owner = [b"".join(parcel.views)], None
            kept.append(parcel)
        self._queue = kept

    def owes(self, collective: int) -> bool:
        """Memory of this collective's caller is still to be read here."""
        return any(parcel.owner is not None and parcel.collective == collective for parcel in self._queue)

    # -- receiving

    def _deliver(self, data: bytes) -> None:
        self._network.note(self, len(data))
        if self.closed:
            return
        self._inbox += data
        if self._network.chance() < self._weather.drowsy:
            self._clock.call_later(self._network.delay(), self._read)
        else:
            self._read()

    def _deliver_end(self) -> None:
        self._network.note(self, 0)
        self._ended = True
        self._read()

    def _read(self) -> None:
        inbox, reader = self._inbox, self._reader
        while inbox and not self.closed:
            room = reader.room()
            if not room:
                return
            count = _fill(room, inbox)
            del inbox[:count]
            self.other._was_read(count)
            reader.received(count)
        if self._ended:
            self.lose(EOFError("it closed the connection"))

    def _was_read(self, count: int) -> None:
        self._unread -= count
        if self._queue:
            self._depart_later()

    def resume(self) -> None:
        if not self.closed and self._reader.blocked:
            self._reader.retry()
            self._clock.call_later(0.0, self._read)

    def _landing(self, header: Header) -> memoryview | None:
        return self._network.dispatchers[self.rank].landing(self, header)

    def _arrived(self, header: Header, payload: memoryview) -> None:
        self._network.dispatchers[self.rank].arrived(self, header, payload)

    # -- the end

    def finish(self) -> None:
        """Close when everything has left."""
        self._finishing = True
        if not self._queue:
            self.close()

    def close(self, *, abrupt: bool = False) -> None:
        """An abrupt end overtakes what is on its way; any other comes after it."""
        if self.closed:
            return
        self.closed = True
        self._queue.clear()
        if abrupt:
            reset = ConnectionResetError("connection reset by peer")
            self._clock.call_later(self._network.delay(), lambda: self.other.lose(reset))
        else:
            self._clock.call_at(self._next_arrival(), self.other._deliver_end)

    def lose(self, reason: Exception) -> None:
        if not self.closed:
            self.close()
            self._network.dispatchers[self.rank].lost(self, reason)


def _fill(room: Sequence[memoryview], inbox: bytearray) -> int:
    count = 0
    for place in room:
        piece = inbox[count : count + len(place)]
        place[: len(piece)] = piece
        count += len(piece)
    return count


class SimulatedLink:
    """All lanes from one rank to another."""

    def __init__(self, lanes: Sequence[SimulatedLane]) -> None:
        self.lanes = lanes

    def send_express(self, header: bytes, payload: memoryview) -> None:
        self.lanes[0].send([header, payload], None, 0)

    def send_bulk(
        self, header: bytes, payload: memoryview, *, stripe: int, owner: Owner | None, collective: int
    ) -> None:
        self.lanes[1 + stripe % (len(self.lanes) - 1)].send([header, payload], owner, collective)

    def tell(self, frame: bytes) -> None:
        self.lanes[0].send([frame], None, 0)

    def forget(self, collective: int) -> None:
        for lane in self.lanes[1:]:
            lane.forget(collective)


class Network:
    """Everything between the ranks, and a log of what has happened there."""

    def __init__(
        self, scenario: Scenario, planners: Sequence[Planner], chance: Random, report: Callable[[str], None]
    ) -> None:
        self.scenario, self.chance, self.report = scenario, chance.random, report
        self.over: set[tuple[int, int]] = set()  # (rank, collective): the memory is the caller's again
        self.clock = VirtualClock()
        self.dispatchers: list[Dispatcher] = []
        self.log = bytearray()
        self._latency = scenario.weather.latency
        self.links = [
            {peer: self._link(rank, peer, planner) for peer in range(scenario.size) if peer != rank}
            for rank, planner in enumerate(planners)
        ]
        for rank, links in enumerate(self.links):
            for peer, link in links.items():
                for lane, other in zip(link.lanes, self.links[peer][rank].lanes, strict=True):
                    lane.other = other

    def _link(self, rank: int, peer: int, planner: Planner) -> SimulatedLink:
        """An express lane to everybody, bulk lanes where they are needed: as in a real ring."""
        lanes = 1 + self.scenario.lanes if planner.exchanges_bulk(peer) else 1
        return SimulatedLink([SimulatedLane(self, rank, peer, index) for index in range(lanes)])

    def lanes_of(self, rank: int) -> list[SimulatedLane]:
        return [lane for link in self.links[rank].values() for lane in link.lanes]

    def delay(self) -> float:
        """Mostly short, now and then as long as it gets."""
        return self._latency * self.chance() ** 3

    def note(self, lane: SimulatedLane, count: int) -> None:
        self.log += _ENTRY.pack(self.clock.time(), lane.rank, lane.peer, lane.index, count)
