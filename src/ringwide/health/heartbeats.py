"""Who is still there: while a collective waits, a thread asks the other ranks for signs of life, and answers theirs.

Rules:
- A thread, because a training step blocks the event loop for as long as it likes: such a rank still answers. One that
  is frozen does not, nor one behind a link that has gone silent.
- Nobody asks while collectives are quick. The thread sleeps, and nothing travels.
- Few questions wait for an answer at a time. Were the connection full of them, the kernel would end it on account of a
  rank that holds the interpreter for long, before `suspect_after_seconds` says so.
- Whatever is heard of a rank counts, on any of its lanes (`silence.py` counts it).
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


class Silence:
    """Of several ranks, each of which can be heard of, or forgotten when it has gone."""

    def __init__(self, peers: Iterable[int], *, suspect_after_seconds: float, beat_seconds: float) -> None:
        self._suspect_after, self._beat = suspect_after_seconds, beat_seconds
        self._heard_at = dict.fromkeys(peers, 0.0)

    def begin(self, now: float) -> None:
        """Nobody was asked before."""
        for peer in self._heard_at:
            self._heard_at[peer] = now

    def hear(self, peer: int, now: float) -> None:
        if peer in self._heard_at:
            self._heard_at[peer] = max(self._heard_at[peer], now)

    def forget(self, peer: int) -> None:
        self._heard_at.pop(peer, None)

    def forgive(self, now: float, seconds: float) -> None:
        """We did not run for so long: what others said meanwhile is perhaps still to be read."""
        for peer, heard_at in self._heard_at.items():
            self._heard_at[peer] = min(now, heard_at + seconds)

    def ends_at(self) -> float:
        """When somebody has been silent for too long, unless it is heard of before."""
        return min(self._heard_at.values(), default=float("inf")) + self._suspect_after

    def broken_by(self, now: float) -> list[int]:
        """Who has been silent for too long. It is told once, and again after as long."""
        if now < self.ends_at():
            return []
        nearly = self._suspect_after - 2 * self._beat
        silent = [peer for peer, heard_at in self._heard_at.items() if now - heard_at >= nearly]
        for peer in silent:
            self._heard_at[peer] = now
        return silent


logger = logging.getLogger("ringwide.health")

LONGEST_BEAT_SECONDS = 0.125
STUCK_BYTES = 64 * 1024
_CLOSING_SECONDS = 1.0
_MOST_QUESTIONS = 64

OnSilent = Callable[[Sequence[int], float], None]
OnLost = Callable[[int, Exception], None]


class PeerHeartbeat:
    """The heartbeat lane to one peer, and what was last heard on it."""

    def __init__(self, peer: int, wire: Wire) -> None:
        self.peer, self.wire = peer, wire
        self.called = 0
        self.sign_at = 0.0
        self.bytes_seen = 0  # on the other lanes of this peer
        self.ended = False
        self.asked = 0  # questions without an answer
        self._inbox = bytearray()
        self._room = memoryview(bytearray(64 * HEARTBEAT_BYTES))

    def signs(self, size: int) -> list[Heartbeat]:
        """Some of those that have come, few enough. EOFError, OSError or RemoteProtocolError end the lane."""
        count = self._receive()
        if count == 0 and self._inbox:
            raise CutOff("it closed the connection in the middle of a sign of life")
        if count == 0:
            raise EOFError("it closed the connection")
        if count is not None:
            self._inbox += self._room[:count]
        whole = len(self._inbox) // HEARTBEAT_BYTES * HEARTBEAT_BYTES
        taken, self._inbox = self._inbox[:whole], self._inbox[whole:]
        return [
            read_heartbeat(taken[place : place + HEARTBEAT_BYTES], size=size)
            for place in range(0, whole, HEARTBEAT_BYTES)
        ]

    def _receive(self) -> int | None:
        try:
            return self.wire.receive([self._room])
        except (BlockingIOError, InterruptedError):
            return None

    def say(self, sign: Heartbeat) -> bool:
        """A sign for which there is no room is dropped: the peer does not read, and the next says as much."""
        try:
            if self.wire.unsent:
                self.wire.flush()
            if self.wire.unsent:
                return False
            if self.wire.send([sign.pack()]) < HEARTBEAT_BYTES:
                raise OSError("the heartbeat lane took only a part of a sign")
        except (BlockingIOError, InterruptedError):
            return False
        return True


class Heartbeats:
    """The heartbeat lanes of one rank, and the thread that listens on them."""

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
        self._pulses: dict[int, PeerHeartbeat] = {}
        self._silence = Silence(links, suspect_after_seconds=suspect_after_seconds, beat_seconds=self._beat_seconds)
        self.stragglers = Stragglers(rank, monotonic)
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name=f"ringwide-vitals-{rank}", daemon=True)
        self._waits_in: int | None = None  # the collective for which others are watched
        self._next_beat = self._watching_since = 0.0
        self._closing = False

    # -- from the event loop

    def add(self, peer: int, wire: Wire) -> None:
        """Before the thread is started."""
        self._pulses[peer] = PeerHeartbeat(peer, wire)

    def start(self) -> None:
        self._selector.register(self._ear, selectors.EVENT_READ, None)
        for pulse in self._pulses.values():
            self._selector.register(pulse.wire.socket, selectors.EVENT_READ, pulse)
        self._thread.start()

    def watch(self, collective: int) -> None:
        """This collective waits for others."""
        asleep, self._waits_in = self._waits_in is None, collective
        if asleep:
            self._ring_bell()

    def rest(self) -> None:
        """Nobody here waits any more."""
        self._waits_in = None

    def called(self, peer: int) -> int:
        """The last collective that this rank has told to have called."""
        return self._pulses[peer].called

    @property
    def sockets(self) -> list[socket.socket]:
        return [self._bell, self._ear, *(pulse.wire.socket for pulse in self._pulses.values())]

    def close(self) -> None:
        self._closing = True
        if self._thread.ident is not None:
            self._ring_bell()
            self._thread.join(_CLOSING_SECONDS)
        self._selector.close()
        for pulse in self._pulses.values():
            pulse.wire.close()
        self._bell.close()
        self._ear.close()

    def _ring_bell(self) -> None:
        try:
            self._bell.send(b"!")
        except BlockingIOError:
            return  # it rings already

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._live_one_beat()
        except Exception:
            if self._closing:
                return  # what it listened on was closed meanwhile
            logger.exception("rank %d has no signs of life any more", self._rank)

    def _live_one_beat(self) -> None:
        due = self._due()
        self._listen_until(due)
        now = self._monotonic()
        if due is None:
            self._begin_watching(now)
        elif now - due > self._beat_seconds:
            self._silence.forgive(now, now - due)
        if self._waits_in is not None:
            if now >= self._next_beat:
                self._beat(now)
            if silent := self._silence.broken_by(now):
                self._tell(self._on_silent, silent, self._suspect_after)

    def _listen_until(self, due: float | None) -> None:
        held = [pulse for pulse in self._living() if pulse.wire.more]  # of which the kernel knows nothing
        seconds = None if due is None else max(0.0, due - self._monotonic())
        for key, _ in self._selector.select(0.0 if held else seconds):
            if key.data is None:
                self._ear.recv(4096)
            elif key.data not in held:
                self._listen(key.data)
        for pulse in held:
            self._listen(pulse)

    def _due(self) -> float | None:
        """When there is something to do, if nothing comes before."""
        return None if self._waits_in is None else min(self._next_beat, self._silence.ends_at())

    def _begin_watching(self, now: float) -> None:
        self._next_beat = self._watching_since = now
        self._silence.begin(now)
        for pulse in self._living():
            pulse.bytes_seen = self._bytes_from(pulse.peer)

    def _living(self) -> list[PeerHeartbeat]:
        return [pulse for pulse in self._pulses.values() if not pulse.ended]

    def _listen(self, pulse: PeerHeartbeat) -> None:
        try:
            for sign in pulse.signs(1 + len(self._links)):
                self._hear(pulse, sign)
        except (EOFError, OSError, RemoteProtocolError) as error:
            self._end(pulse, error)

    def _hear(self, pulse: PeerHeartbeat, sign: Heartbeat) -> None:
        pulse.sign_at = self._monotonic()
        self._silence.hear(pulse.peer, pulse.sign_at)
        pulse.called = max(pulse.called, sign.called)
        self.stragglers.hear_stuck(pulse.peer, sign.stuck_to, sign.stuck_milliseconds / 1000)
        if sign.kind == HeartbeatKind.PING:
            pulse.say(self._sign(HeartbeatKind.PONG, sign.stamp))
        else:
            pulse.asked = max(0, pulse.asked - 1)
            self.stragglers.note_round_trip(pulse.peer, self._monotonic() - sign.stamp / 1e9)

    def _sign(self, kind: HeartbeatKind, stamp: int) -> Heartbeat:
        to, seconds = self.stragglers.most_stuck()
        return Heartbeat(kind, to, int(seconds * 1000), self._called(), stamp)

    def _end(self, pulse: PeerHeartbeat, error: Exception) -> None:
        pulse.ended = True
        self._silence.forget(pulse.peer)
        self._selector.unregister(pulse.wire.socket)
        self._tell(self._on_lost, pulse.peer, error)

    def _beat(self, now: float) -> None:
        self._next_beat = now + self._beat_seconds
        for pulse in self._living():
            self._look_at_lanes(pulse, now)
        self._note_who_is_slow()
        for pulse in self._living():
            try:
                if pulse.asked < _MOST_QUESTIONS and pulse.say(self._sign(HeartbeatKind.PING, self._stamp())):
                    pulse.asked += 1
            except (OSError, RemoteProtocolError) as error:
                self._end(pulse, error)

    def _stamp(self) -> int:
        return int(self._monotonic() * 1e9)

    def _look_at_lanes(self, pulse: PeerHeartbeat, now: float) -> None:
        received = self._bytes_from(pulse.peer)
        if received != pulse.bytes_seen:
            pulse.bytes_seen = received
            self._silence.hear(pulse.peer, now)

    def _note_who_is_slow(self) -> None:
        """While a rank is late, bytes are stuck everywhere: that says nothing until all are known to have called."""
        waits_in = self._waits_in or 0
        known = [pulse for pulse in self._living() if pulse.sign_at > self._watching_since]
        late = [pulse for pulse in known if pulse.called < waits_in]
        for pulse in late:
            self.stragglers.note_late(pulse.peer, self._beat_seconds)
        if not late and len(known) == len(self._living()):
            for pulse in known:
                if any(_is_stuck(lane) for lane in list(self._links[pulse.peer].lanes.values())):
                    self.stragglers.note_stuck(pulse.peer, self._beat_seconds)
        self.stragglers.report(self._beat_seconds)

    def _bytes_from(self, peer: int) -> int:
        return sum(lane.bytes_received for lane in list(self._links[peer].lanes.values()))

    def _tell(self, callback: Callable[..., None], *facts: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *facts)
        except RuntimeError:  # the event loop is closed already
            self._closing = True


def _is_stuck(lane: Lane) -> bool:
    """More than a fast link would leave unconfirmed, here or in the kernel."""
    return bool(lane.queued) or unacknowledged_bytes(lane.socket) > STUCK_BYTES
