"""Heartbeats: while a collective waits, a thread pings the other ranks, and it always answers their pings.

Rules:
- It is a thread because a training step may block the event loop for any time. Such a rank still answers. A frozen rank
  does not, nor does one behind a link that has gone silent.
- While collectives are quick, nothing is sent and the thread sleeps.
- The number of unanswered pings is limited. If they filled the connection, the kernel would end it because of a rank
  that holds the interpreter for long, earlier than `suspect_after_seconds`.
- Bytes from a rank on any of its lanes count as a heartbeat (see `Silence`).
"""

import asyncio
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ringwide.errors import RemoteProtocolError
from ringwide.health.stragglers import Stragglers
from ringwide.protocol.heartbeat import HEARTBEAT_BYTES, Heartbeat, HeartbeatKind, read_heartbeat
from ringwide.transport.lane import Lane
from ringwide.transport.link import Link
from ringwide.transport.sockets import unacknowledged_bytes
from ringwide.transport.wire import CutOff, Wire

logger = logging.getLogger("ringwide.health")

LONGEST_BEAT_SECONDS = 0.125
STUCK_BYTES = 64 * 1024
_CLOSING_SECONDS = 1.0
_MOST_PINGS = 64

OnSilent = Callable[[Sequence[int], float], None]
OnLost = Callable[[int, Exception], None]


class Silence:
    """Silence of each rank: when it was last heard from, and since when that is too long."""

    def __init__(self, peers: Iterable[int], *, suspect_after_seconds: float, beat_seconds: float) -> None:
        self._suspect_after, self._beat = suspect_after_seconds, beat_seconds
        self._heard_at = dict.fromkeys(peers, 0.0)

    def begin(self, now: float) -> None:
        """Begin to count now, as nobody was pinged before."""
        for peer in self._heard_at:
            self._heard_at[peer] = now

    def hear(self, peer: int, now: float) -> None:
        if peer in self._heard_at:
            self._heard_at[peer] = max(self._heard_at[peer], now)

    def forget(self, peer: int) -> None:
        self._heard_at.pop(peer, None)

    def forgive(self, now: float, seconds: float) -> None:
        """Do not count time in which we did not run: what others sent meanwhile may still be unread."""
        for peer, heard_at in self._heard_at.items():
            self._heard_at[peer] = min(now, heard_at + seconds)

    def ends_at(self) -> float:
        """Time at which some rank will have been silent for too long, unless it is heard from before."""
        return min(self._heard_at.values(), default=float("inf")) + self._suspect_after

    def broken_by(self, now: float) -> list[int]:
        """Ranks that have been silent for too long. Each is reported once, and again after as long."""
        if now < self.ends_at():
            return []
        nearly = self._suspect_after - 2 * self._beat
        silent = [peer for peer, heard_at in self._heard_at.items() if now - heard_at >= nearly]
        for peer in silent:
            self._heard_at[peer] = now
        return silent


class HeartbeatLane:
    """The heartbeat lane to one peer, and the last news from it."""

    def __init__(self, peer: int, wire: Wire) -> None:
        self.peer, self.wire = peer, wire
        self.called = 0
        self.heartbeat_at = 0.0
        self.bytes_seen = 0  # received on the other lanes of this peer
        self.ended = False
        self.unanswered = 0  # pings
        self._received = bytearray()
        self._buffer = memoryview(bytearray(64 * HEARTBEAT_BYTES))

    def receive(self, size: int) -> list[Heartbeat]:
        """Some of the heartbeats that have come. EOFError, OSError or RemoteProtocolError end the lane."""
        count = self._receive()
        if count == 0 and self._received:
            raise CutOff("it closed the connection in the middle of a heartbeat")
        if count == 0:
            raise EOFError("it closed the connection")
        if count is not None:
            self._received += self._buffer[:count]
        whole = len(self._received) // HEARTBEAT_BYTES * HEARTBEAT_BYTES
        taken, self._received = self._received[:whole], self._received[whole:]
        return [
            read_heartbeat(taken[place : place + HEARTBEAT_BYTES], size=size)
            for place in range(0, whole, HEARTBEAT_BYTES)
        ]

    def _receive(self) -> int | None:
        try:
            return self.wire.receive([self._buffer])
        except (BlockingIOError, InterruptedError):
            return None

    def send(self, heartbeat: Heartbeat) -> bool:
        """Send a heartbeat. False: there is no room and it is dropped; the peer does not read, and the next will do."""
        try:
            if self.wire.unsent:
                self.wire.flush()
            if self.wire.unsent:
                return False
            if self.wire.send([heartbeat.pack()]) < HEARTBEAT_BYTES:
                raise OSError("the heartbeat lane took only a part of a heartbeat")
        except (BlockingIOError, InterruptedError):
            return False
        return True


class Heartbeats:
    """The heartbeat lanes of one rank, and the thread that serves them."""

    def __init__(
        self,
        *,
        rank: int,
        links: Mapping[int, Link],
        suspect_after_seconds: float,
        called: Callable[[], int],
        on_silent: OnSilent,
        on_lost: OnLost,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank, self._links, self._called = rank, links, called
        self._suspect_after = suspect_after_seconds
        self._beat_seconds = min(LONGEST_BEAT_SECONDS, suspect_after_seconds / 8)
        self._on_silent, self._on_lost, self._monotonic = on_silent, on_lost, monotonic
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[int, HeartbeatLane] = {}
        self._silence = Silence(links, suspect_after_seconds=suspect_after_seconds, beat_seconds=self._beat_seconds)
        self.stragglers = Stragglers(rank, monotonic)
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._wake_receiver.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name=f"ringwide-heartbeats-{rank}", daemon=True)
        self._waiting: dict[object, int] = {}  # collectives that wait, by the subgroup; None: the ring itself
        self._waits_in: int | None = None  # that of the ring, 0: one of a subgroup; None: nothing waits
        self._next_beat = self._watching_since = 0.0
        self._closing = False

    # -- from the event loop

    def add(self, peer: int, wire: Wire) -> None:
        """Add the lane to a peer, before the thread is started."""
        self._lanes[peer] = HeartbeatLane(peer, wire)

    def start(self) -> None:
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        for lane in self._lanes.values():
            self._selector.register(lane.wire.socket, selectors.EVENT_READ, lane)
        self._thread.start()

    def watch(self, collective: int, subgroup: object = None) -> None:
        """Watch the other ranks, as this collective waits for them."""
        asleep = self._waits_in is None
        self._waiting[subgroup] = collective
        self._waits_in = self._waiting.get(None, 0)
        if asleep:
            self._wake_thread()

    def rest(self, subgroup: object = None) -> None:
        """Stop watching, unless another waits: here nothing does any more."""
        self._waiting.pop(subgroup, None)
        self._waits_in = self._waiting.get(None, 0) if self._waiting else None

    def called(self, peer: int) -> int:
        """Highest collective number that this peer has reported calling."""
        return self._lanes[peer].called

    @property
    def sockets(self) -> list[socket.socket]:
        return [self._wake_sender, self._wake_receiver, *(lane.wire.socket for lane in self._lanes.values())]

    def close(self) -> None:
        self._closing = True
        if self._thread.ident is not None:
            self._wake_thread()
            self._thread.join(_CLOSING_SECONDS)
        self._selector.close()
        for lane in self._lanes.values():
            lane.wire.close()
        self._wake_sender.close()
        self._wake_receiver.close()

    def _wake_thread(self) -> None:
        try:
            self._wake_sender.send(b"!")
        except BlockingIOError:
            return  # it is being woken already

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._run_one_beat()
        except Exception:
            if self._closing:
                return  # its sockets were closed meanwhile
            logger.exception("rank %d has lost its heartbeats: their thread has failed", self._rank)

    def _run_one_beat(self) -> None:
        due = self._due()
        self._receive_until(due)
        now = self._monotonic()
        if due is None:
            self._begin_watching(now)
        elif now - due > self._beat_seconds:
            self._silence.forgive(now, now - due)
        if self._waits_in is not None:
            if now >= self._next_beat:
                self._beat(now)
            if silent := self._silence.broken_by(now):
                self._call_on_loop(self._on_silent, silent, self._suspect_after)

    def _receive_until(self, due: float | None) -> None:
        held = [lane for lane in self._open_lanes() if lane.wire.more]  # bytes that the kernel does not know of
        seconds = None if due is None else max(0.0, due - self._monotonic())
        for key, _ in self._selector.select(0.0 if held else seconds):
            if key.data is None:
                self._wake_receiver.recv(4096)
            elif key.data not in held:
                self._receive_from(key.data)
        for lane in held:
            self._receive_from(lane)

    def _due(self) -> float | None:
        """Time of the next thing to do. None: wait until woken."""
        return None if self._waits_in is None else min(self._next_beat, self._silence.ends_at())

    def _begin_watching(self, now: float) -> None:
        self._next_beat = self._watching_since = now
        self._silence.begin(now)
        for lane in self._open_lanes():
            lane.bytes_seen = self._bytes_from(lane.peer)

    def _open_lanes(self) -> list[HeartbeatLane]:
        return [lane for lane in self._lanes.values() if not lane.ended]

    def _receive_from(self, lane: HeartbeatLane) -> None:
        try:
            for heartbeat in lane.receive(1 + len(self._links)):
                self._on_heartbeat(lane, heartbeat)
        except (EOFError, OSError, RemoteProtocolError) as error:
            self._end(lane, error)

    def _on_heartbeat(self, lane: HeartbeatLane, heartbeat: Heartbeat) -> None:
        lane.heartbeat_at = self._monotonic()
        self._silence.hear(lane.peer, lane.heartbeat_at)
        lane.called = max(lane.called, heartbeat.called)
        self.stragglers.note_stuck_elsewhere(lane.peer, heartbeat.stuck_to, heartbeat.stuck_milliseconds / 1000)
        if heartbeat.kind == HeartbeatKind.PING:
            lane.send(self._heartbeat(HeartbeatKind.PONG, heartbeat.stamp))
        else:
            lane.unanswered = max(0, lane.unanswered - 1)
            self.stragglers.note_round_trip(lane.peer, self._monotonic() - heartbeat.stamp / 1e9)

    def _heartbeat(self, kind: HeartbeatKind, stamp: int) -> Heartbeat:
        to, seconds = self.stragglers.most_stuck()
        return Heartbeat(kind, to, int(seconds * 1000), self._called(), stamp)

    def _end(self, lane: HeartbeatLane, error: Exception) -> None:
        lane.ended = True
        self._silence.forget(lane.peer)
        self._selector.unregister(lane.wire.socket)
        self._call_on_loop(self._on_lost, lane.peer, error)

    def _beat(self, now: float) -> None:
        self._next_beat = now + self._beat_seconds
        for lane in self._open_lanes():
            self._check_traffic(lane, now)
        self._note_stragglers()
        for lane in self._open_lanes():
            try:
                if lane.unanswered < _MOST_PINGS and lane.send(self._heartbeat(HeartbeatKind.PING, self._stamp())):
                    lane.unanswered += 1
            except (OSError, RemoteProtocolError) as error:
                self._end(lane, error)

    def _stamp(self) -> int:
        return int(self._monotonic() * 1e9)

    def _check_traffic(self, lane: HeartbeatLane, now: float) -> None:
        received = self._bytes_from(lane.peer)
        if received != lane.bytes_seen:
            lane.bytes_seen = received
            self._silence.hear(lane.peer, now)

    def _note_stragglers(self) -> None:
        """Note late ranks and stuck bytes. While a rank is late, bytes are stuck everywhere, which proves nothing."""
        waits_in = self._waits_in or 0
        known = [lane for lane in self._open_lanes() if lane.heartbeat_at > self._watching_since]
        late = [lane for lane in known if lane.called < waits_in]
        for lane in late:
            self.stragglers.note_late(lane.peer, self._beat_seconds)
        if not late and len(known) == len(self._open_lanes()):
            for lane in known:
                if any(_is_stuck(data_lane) for data_lane in list(self._links[lane.peer].lanes.values())):
                    self.stragglers.note_stuck(lane.peer, self._beat_seconds)
        self.stragglers.report(self._beat_seconds)

    def _bytes_from(self, peer: int) -> int:
        return sum(lane.bytes_received for lane in list(self._links[peer].lanes.values()))

    def _call_on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the event loop is closed already
            self._closing = True


def _is_stuck(lane: Lane) -> bool:
    """Whether more bytes wait, here or in the kernel, than a fast link would leave unacknowledged."""
    return bool(lane.queued) or unacknowledged_bytes(lane.socket) > STUCK_BYTES
