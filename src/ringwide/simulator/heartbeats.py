"""Signs of life on the virtual clock: what `Liveness` would know, without its threads and its bytes."""

from collections.abc import Callable, Sequence

from ringwide.health.heartbeats import Silence
from ringwide.simulator.faults import SUSPECT_SECONDS
from ringwide.simulator.network import Network

BEAT_SECONDS = SUSPECT_SECONDS / 5

OnSilent = Callable[[Sequence[int], float], None]


class SimulatedHeartbeats:
    """What one rank hears of the others while it waits: each at a time of its own, shortly before it is looked at."""

    def __init__(
        self, rank: int, network: Network, all_heartbeats: "Sequence[SimulatedHeartbeats]", on_silent: OnSilent
    ) -> None:
        self._rank, self._network, self._on_silent = rank, network, on_silent
        self._all, self._host = all_heartbeats, network.hosts[rank]
        self._links = network.links[rank]
        self._silence = Silence(self._links, suspect_after_seconds=SUSPECT_SECONDS, beat_seconds=BEAT_SECONDS)
        self._called = dict.fromkeys(self._links, 0)
        self._received = dict.fromkeys(self._links, 0)
        self.watching = False
        self._awaited_beats = 0
        self._due = 0.0

    # -- from the dispatcher

    def watch(self, collective: int, /) -> None:
        if self.watching:
            return
        self.watching = True
        self._due = self._host.time()
        self._silence.begin(self._due)
        self._awaited_beats += 1
        self._beat(self._awaited_beats)

    def rest(self) -> None:
        self.watching = False

    def called(self, peer: int, /) -> int:
        return self._called[peer]

    # -- while it is watched

    def _beat(self, number: int) -> None:
        if not self.watching or number != self._awaited_beats:
            return  # one that was stopped meanwhile
        now = self._host.time()
        if now - self._due > BEAT_SECONDS:
            self._silence.forgive(now, now - self._due)
        self._listen(now)
        if silent := self._silence.broken_by(now):
            self._on_silent(silent, SUSPECT_SECONDS)
        self._due = min(now + BEAT_SECONDS, self._silence.ends_at())
        self._host.call_at(self._due, lambda: self._beat(number))

    def _listen(self, now: float) -> None:
        for peer in self._living():
            self._links[peer].heartbeat.knock()
            received = sum(lane.received for lane in self._links[peer].lanes)
            if self._answers(peer) or received != self._received[peer]:
                self._silence.hear(peer, now - self._network.delay())
            if self._answers(peer):
                self._called[peer] = self._network.dispatchers[peer].called
            self._received[peer] = received

    def _answers(self, peer: int) -> bool:
        """It hears our questions and we hear its answers, or it has questions of its own."""
        ours = self._links[peer].heartbeat
        asked = ours.is_open or self._all[peer].watching
        return asked and ours.other.is_open and not self._network.hosts[peer].silent

    def _living(self) -> list[int]:
        for peer, link in self._links.items():
            if link.heartbeat.closed:
                self._silence.forget(peer)
        return [peer for peer, link in self._links.items() if not link.heartbeat.closed]
