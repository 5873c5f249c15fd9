"""Simulated lanes: connections whose bytes arrive in pieces, after random delays.

Rules:
- A lane keeps the order of its bytes. Nothing is promised between lanes.
- A queued payload is read from memory when it leaves, so a caller that reuses the memory too early is found out.
- A connection holds at most `capacity_bytes` that the other side has not read; more does not leave.
- No rank calls another rank directly: everything that crosses the network is an event of its own.
- A lane ends as a real one does: with END in both directions. Any other end is a loss.
- Bytes sent into a hole wait, as in a kernel that retransmits, and arrive if it closes. So do acknowledgements.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ringwide.collectives.bucket_operation import SendOwner
from ringwide.collectives.dispatcher import Dispatcher
from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import END, HEADER_BYTES, FrameKind, FrameReader, Header, framed, seal
from ringwide.protocol.heartbeat import HEARTBEAT_LANE
from ringwide.simulator.frame import SimulatedFrame, damage_last, fill, garbled
from ringwide.simulator.host import Event, Host, VirtualClock
from ringwide.simulator.scenario import Damage, Scenario
from ringwide.transport.lane_buffers import Scratch
from ringwide.transport.wire import CutOff

_END_FRAME = framed(FrameKind.END, b"")


class LaneNetwork(Protocol):
    """Network as a lane sees it."""

    scenario: Scenario
    clock: VirtualClock
    draw: Callable[[], float]
    hosts: list[Host]
    dispatchers: list[Dispatcher]
    over: set[tuple[int, int]]
    report: Callable[[str], None]

    def delay(self) -> float: ...
    def note(self, lane: "SimulatedLane", count: int) -> None: ...


class SimulatedLane:
    """One end of a connection. `other` is the end at the peer."""

    __slots__ = (
        "_clock",
        "_conditions",
        "_copies_sends",
        "_departing",
        "_draw",
        "_finishing",
        "_gone",
        "_held",
        "_holes",
        "_host",
        "_inbox",
        "_last_arrival",
        "_network",
        "_next",
        "_queue",
        "_reader",
        "_sealed",
        "_sent",
        "_stream_ended",
        "_unread",
        "closed",
        "damage",
        "ended",
        "index",
        "on_end",
        "other",
        "peer",
        "rank",
        "received",
        "scratch",
    )

    other: "SimulatedLane"

    def __init__(self, network: LaneNetwork, rank: int, peer: int, index: int) -> None:
        self.rank, self.peer, self.index = rank, peer, index
        self.closed = self.ended = False
        self.on_end: Callable[[], None] = _ignore
        self.received = self._sent = 0  # bytes
        self.damage: Damage | None = None  # to be done to the next frame
        scenario = network.scenario
        self._network, self._clock, self._conditions = network, network.clock, scenario.conditions
        self._draw, self._host = network.draw, network.hosts[rank]
        self._queue: deque[SimulatedFrame] = deque()
        self._departing = False  # a departure is scheduled
        self._unread = 0  # bytes that have left here and are not read there
        self._last_arrival = 0.0
        self._finishing = False  # nothing is sent after the queued frames
        self._gone = False  # reset: this end knows, the other learns of it when it sends
        self._holes = 0  # while there are any, nothing sent here arrives
        self._held: list[Event] = []  # events that wait for the end of the hole
        self._inbox, self._stream_ended = bytearray(), False  # ended: nothing comes after the inbox
        self.scratch = Scratch()
        self._copies_sends = scenario.copies_sends
        self._sealed, self._next = scenario.sealed, 0  # number of the next frame
        self._reader: FrameReader | None = None  # made on first use: most lanes of a short life are never used

    def _make_reader(self) -> FrameReader:
        scenario = self._network.scenario
        return FrameReader(
            landing=self._landing,
            arrived=self._arrived,
            limit_bytes=scenario.segment_bytes if self.index else scenario.express_bytes,
            staging_bytes=HEADER_BYTES if self.index else HEADER_BYTES + scenario.staging_bytes,
            sealed=scenario.sealed,
            numbered=scenario.sealed,
        )

    # -- sending

    def send(self, header: bytes, payload: bytes | memoryview, owner: SendOwner | None, key: int) -> None:
        if self.closed or self._finishing:
            return
        if owner is not None and (self.rank, key) in self._network.over:
            self._network.report(f"rank {self.rank} sends memory of collective {key:#x}, which is over there")
        if owner is not None and self._copies_sends:
            self._put(SimulatedFrame([header, bytes(payload)], None, key))
            owner.sent()
        else:
            self._put(SimulatedFrame([header, payload if owner is not None else bytes(payload)], owner, key))

    def _put(self, frame: SimulatedFrame) -> None:
        waiting = bool(self._queue)
        self._queue.append(frame)
        if self.damage is not None and damage_last(self._queue, self.damage, self._sealed, self._conditions.latency):
            self.damage = None
        if waiting or self._departing:
            return
        if self._draw() < self._conditions.taken_at_once:
            self._depart()
        else:
            self._depart_later()

    def _depart_later(self) -> None:
        if not self._departing:
            self._departing = True
            self._clock.call_later(self._network.delay(), self._depart)

    def _depart(self) -> None:
        """The kernel takes as much as it has room for."""
        if self._host.frozen:
            self._host.defer(self._depart)
            return
        self._departing = False
        room = self._conditions.capacity_bytes - self._unread
        if self.closed or not self._queue or room <= 0:
            return
        frame = self._queue[0]
        if not frame.started:
            self._seal(frame)
        self._transmit(frame.take(min(room, self._piece_of(frame.left))))
        if not frame.left:
            self._queue.popleft()
            self._last_arrival += frame.pause
            if frame.owner is not None:
                frame.owner.sent()
        if self._queue:
            self._depart_later()
        else:
            self._close_if_over()

    def _seal(self, frame: SimulatedFrame) -> None:
        """Seal a frame when it begins to leave, as a real lane does: until then it may be withdrawn."""
        if self._sealed and len(frame.views) == 2:
            header, payload = frame.views
            frame.views = [seal(header, payload, self._next + frame.overtaken), payload]
            self._next += 1
        if frame.echo is not None:
            frame.echo.views = [b"".join(frame.views)]

    def _piece_of(self, count: int) -> int:
        if self._conditions.split and self._draw() < self._conditions.split:
            return 1 + int(self._draw() * (count - 1))
        return count

    def _transmit(self, data: bytes) -> None:
        self._unread += len(data)
        self._sent += len(data)
        if self.damage is Damage.GARBLED:
            self.damage, data = None, garbled(data, 1 - self._draw() ** 3)  # rarely in the header
        self._cross(partial(self.other._deliver, data))

    def _cross(self, event: Event) -> None:
        """Schedule an event at the other end, after all that was sent before."""
        if self._holes:
            self._held.append(event)
            return
        self._last_arrival = max(self._last_arrival, self._clock.now + self._network.delay())
        self._clock.call_at(self._last_arrival, event)

    def forget(self, key: int) -> None:
        """Withdraw frames of a collective that have not begun to leave, and copy the rest, as a real lane does."""
        if self._reader is not None:
            self._reader.divert(key)
        if not self._queue:
            return
        kept: deque[SimulatedFrame] = deque()
        for frame in self._queue:
            if frame.owner is not None and frame.key == key:
                if not frame.started:
                    continue
                frame.views, frame.owner = [b"".join(frame.views)], None
            kept.append(frame)
        self._queue = kept

    def owes(self, key: int) -> bool:
        """Whether memory of this collective's caller is still to be sent."""
        queue = self._queue
        return bool(queue) and any(frame.owner is not None and frame.key == key for frame in queue)

    # -- receiving

    def _deliver(self, data: bytes) -> None:
        self._network.note(self, len(data))
        if self._gone:
            self._cross(self.other.break_off)
        if self.closed:
            return
        self._inbox += data
        self.received += len(data)
        if self._conditions.late_read and self._draw() < self._conditions.late_read:
            self._clock.call_later(self._network.delay(), self._read)
        else:
            self._read()

    def _deliver_end(self) -> None:
        self._network.note(self, 0)
        self._stream_ended = True
        self._read()

    def _read(self) -> None:
        if self._host.frozen:
            self._host.defer(self._read)
            return
        inbox, reader = self._inbox, self._reader
        if reader is None:
            reader = self._reader = self._make_reader()
        try:
            while inbox and not self.closed:
                room = reader.room()
                if not room:
                    return
                count = fill(room, inbox)
                del inbox[:count]
                self._cross_back(count)
                reader.received(count)
        except RemoteProtocolError as error:  # a real lane treats any exception as a loss; here others are findings
            self._lose(error)
        if self._stream_ended:
            self._lose(self._end_of_file(reader))

    @staticmethod
    def _end_of_file(reader: FrameReader) -> EOFError:
        if reader.inside_a_frame:
            return CutOff("it closed the connection in the middle of a frame")
        return EOFError("it closed the connection")

    def _cross_back(self, count: int) -> None:
        """Acknowledge bytes that were read. This takes no time, but cannot cross a hole."""
        if self._holes:
            self._held.append(partial(self.other._was_read, count))
        else:
            self.other._was_read(count)

    def _was_read(self, count: int) -> None:
        self._unread -= count
        if self._queue:
            self._depart_later()

    def resume(self) -> None:
        if self.closed or self._reader is None or not self._reader.blocked:
            return
        try:
            self._reader.retry()
        except RemoteProtocolError as error:
            self._lose(error)
        self._clock.call_later(0.0, self._read)

    def _landing(self, header: Header) -> memoryview | None:
        return self._network.dispatchers[self.rank].landing(self, header)

    def _arrived(self, header: Header, payload: memoryview) -> None:
        if self.ended or header.kind == END:
            self._hear_end()
            return
        self._network.dispatchers[self.rank].arrived(self, header, payload)

    # -- faults

    @property
    def used(self) -> bool:
        return bool(self._queue) or self._last_arrival > 0.0

    def open_hole(self) -> None:
        self._holes += 1

    def close_hole(self) -> None:
        self._holes -= 1
        if not self._holes:
            held, self._held = self._held, []
            for event in held:
                self._cross(event)

    @property
    def is_open(self) -> bool:
        """Whether what is sent here arrives."""
        return not self._holes and not self.closed

    def probe(self) -> None:
        """Send an empty probe, by which this end learns of a reset that only the other end knows of."""
        if self.other._gone and self.is_open:
            self._clock.call_later(self._network.delay(), self.break_off)

    def break_off(self) -> None:
        """Tell this end that the connection was reset. The other end finds out when it sends."""
        self._host.run(self._break_off)

    def _break_off(self) -> None:
        if not self.closed:
            self.closed = self._gone = True
            self._queue.clear()
            self.on_end()
            self._tell_of_loss(ConnectionResetError("connection reset by peer"))

    # -- the end

    def finish(self) -> None:
        """Send END after all that is queued. The lane closes when the peer has sent it too."""
        if not self._finishing:
            self.send(_END_FRAME, b"", None, 0)
            self._finishing = True
            self._close_if_over()

    def _hear_end(self) -> None:
        if self.ended:
            raise RemoteProtocolError("a frame came after the END of its lane")
        self.ended = True
        self._close_if_over()
        self.on_end()

    def _close_if_over(self) -> None:
        if self.ended and self._finishing and not self._queue:
            self.close()

    @property
    def delivered(self) -> bool:
        return self._finishing and not self._queue and not self._unread

    @property
    def moved(self) -> int:
        return self._sent + self.received - self._unread

    def reset(self) -> None:
        self.close(abrupt=True)

    def close(self, *, abrupt: bool = False) -> None:
        """Close this end. An abrupt end overtakes what is under way; any other comes after it."""
        if self.closed:
            return
        self.closed = True
        self._queue.clear()
        if abrupt and not self._holes:
            self._clock.call_later(self._network.delay(), self.other.break_off)
        else:
            self._cross(self.other.break_off if abrupt else self.other._deliver_end)
        self.on_end()

    def _lose(self, reason: Exception) -> None:
        if not self.closed:
            self.close()
            self._tell_of_loss(reason)

    def _tell_of_loss(self, reason: Exception) -> None:
        dispatcher = self._network.dispatchers[self.rank]
        if self.ended and isinstance(reason, EOFError | OSError):
            return  # after END nothing can be lost
        if self.index == HEARTBEAT_LANE:
            dispatcher.peer_loss.heartbeat_lane_ended(self.peer, reason)
        else:
            dispatcher.lost(self, reason)

    def dissolve(self) -> None:
        """Break the reference cycles between this lane, its peer and its reader."""
        del self.other
        self._reader = None
        self.on_end = _ignore


def _ignore() -> None: ...
