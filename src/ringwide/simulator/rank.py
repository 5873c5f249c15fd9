"""Rank of a simulated ring: its caller, its dispatcher, its heartbeats and its codec pool."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ringwide.collectives.deadlines import Clock
from ringwide.collectives.dispatcher import Dispatcher
from ringwide.collectives.peer_loss import Leaving
from ringwide.collectives.plan import Plan
from ringwide.collectives.running_collective import Collective, LaneSharing
from ringwide.compression.jobs import Job, Settle, Then
from ringwide.compression.policy import CodecPolicy
from ringwide.errors import PeerLost, RingClosed, RingwideError
from ringwide.health.heartbeats import Silence
from ringwide.simulator.calls import CallNumbers, SimulatedCall, SimulatedMemory
from ringwide.simulator.network import Network
from ringwide.simulator.scenario import SUSPECT_SECONDS, TIMEOUT_SECONDS, Scenario

BEAT_SECONDS = SUSPECT_SECONDS / 5

OnSilent = Callable[[Sequence[int], float], None]


class SimulatedHeartbeats:
    """Heartbeats that one rank gets from its peers while it waits, each at a random time shortly before it is read."""

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
            return  # of an earlier watch
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
            self._links[peer].heartbeat.probe()
            received = sum(lane.received for lane in self._links[peer].lanes)
            if self._answers(peer) or received != self._received[peer]:
                self._silence.hear(peer, now - self._network.delay())
            if self._answers(peer):
                self._called[peer] = self._network.dispatchers[peer].channels.default.called
            self._received[peer] = received

    def _answers(self, peer: int) -> bool:
        """Whether the peer gets our heartbeats and we get its answers, or it sends heartbeats of its own."""
        ours = self._links[peer].heartbeat
        asked = ours.is_open or self._all[peer].watching
        return asked and ours.other.is_open and not self._network.hosts[peer].silent

    def _living(self) -> list[int]:
        for peer, link in self._links.items():
            if link.heartbeat.closed:
                self._silence.forget(peer)
        return [peer for peer, link in self._links.items() if not link.heartbeat.closed]


_REPORTED_AT_ONCE = 0.5


class SimulatedCodecPool:
    """Codec pool of one rank. `longest` is the longest wait in seconds."""

    def __init__(self, clock: Clock, draw: Callable[[], float], longest: float) -> None:
        self._clock, self._draw, self._longest = clock, draw, longest
        self.pending = 0

    def run(self, job: Job, then: Then) -> Settle:
        self.pending += 1
        self._later(partial(self._do, job, then))
        return _never_running

    def _do(self, job: Job, then: Then) -> None:
        result, failure = None, None
        try:
            result = job()
        except Exception as error:
            failure = error
        if self._draw() < _REPORTED_AT_ONCE:
            self._report(then, result, failure)
        else:
            self._later(partial(self._report, then, result, failure))

    def _report(self, then: Then, result: Any, failure: Exception | None) -> None:
        self.pending -= 1
        then(result, failure)

    def _later(self, event: Callable[[], None]) -> None:
        self._clock.call_later(self._longest * self._draw(), event)


def _never_running() -> None:
    """Jobs take no time, only the wait for them does, so none is ever running."""


class RankLife(Protocol):
    """Life as a rank sees it."""

    scenario: Scenario
    network: Network

    def report(self, problem: str) -> None: ...

    def call_numbers(self, index: int, call: SimulatedCall) -> CallNumbers: ...

    def plan(self, rank: int, call: SimulatedCall) -> Plan: ...

    def submitted(self, rank: int, index: int) -> None: ...

    def leaving(self, rank: int) -> None: ...

    def heartbeats_of(self, rank: int) -> SimulatedHeartbeats: ...

    def check_ending(self, rank: int, index: int, memory: SimulatedMemory, error: RingwideError | None) -> None: ...


class Rank:
    """Rank that makes one call after the other, and may leave when all have ended."""

    def __init__(self, life: RankLife, rank: int) -> None:
        scenario = life.scenario
        self.rank, self.left, self.left_at = rank, False, 0.0
        self.hung_up = False  # it has left, and all peers have read what it sent
        self.endings: dict[int, RingwideError | None] = {}
        self.called_at: dict[int, float] = {}
        self.ended_at: dict[int, float] = {}
        self.gave_up_on: set[int] = set()
        self.calls = scenario.calls_of(rank)
        self._life, self._network, self._scenario = life, life.network, scenario
        self.host = life.network.hosts[rank]
        self._open: dict[int, tuple[Collective, SimulatedMemory]] = {}
        self.codec_policy = _codec_policy(scenario, rank, self.host.time)
        self.codec_pool = SimulatedCodecPool(self.host, life.network.draw, scenario.conditions.codec_delay)
        self.dispatcher = Dispatcher(
            rank=rank,
            links=life.network.links[rank],
            clock=self.host,
            timeout_seconds=TIMEOUT_SECONDS,
            warn_after_seconds=TIMEOUT_SECONDS / 2,
            codec_policy=self.codec_policy,
            codec_pool=self.codec_pool,
            sharing=LaneSharing(scenario.epoch),
        )

    # -- calling

    def call_later(self, index: int) -> None:
        if index < len(self.calls):
            pause = self._scenario.conditions.pause * self._network.draw()
            late = self._scenario.fault.lateness(self.rank, index)
            self.host.call_later(pause + late, lambda: self._call(index))

    def _call(self, index: int) -> None:
        call = self.calls[index]
        memory = SimulatedMemory(self._life.call_numbers(index, call), self.rank, saves=self._network.draw() < 0.5)
        self.called_at[index] = self.host.time()
        if self._scenario.fault.skips(self.rank, index):
            self.gave_up_on.add(index)
            self.dispatcher.skip("its caller was cancelled before its turn came")
            self._ended(index, memory, None)
        else:
            self._submit(index, call, memory)
        self._life.submitted(self.rank, index)
        if not call.awaited:
            self.call_later(index + 1)

    def _submit(self, index: int, call: SimulatedCall, memory: SimulatedMemory) -> None:
        plan = self._life.plan(self.rank, call)
        try:
            collective = self.dispatcher.submit(plan, memory.numbers, lambda error: self._ended(index, memory, error))
        except RingwideError as error:
            self._ended(index, memory, error)
            return
        if index not in self.endings:
            self._open[index] = collective, memory

    def _ended(self, index: int, memory: SimulatedMemory, error: RingwideError | None) -> None:
        if index in self.endings:
            self._life.report(f"rank {self.rank}: call {index} ended twice")
        self.endings[index], self.ended_at[index] = error, self.host.time()
        self._open.pop(index, None)
        self._life.check_ending(self.rank, index, memory, error)
        memory.spoil()
        if self.calls[index].awaited:
            self.call_later(index + 1)
        if len(self.endings) == len(self.calls) and self._leaves():
            haste = 0.0 if self._scenario.kills_while_leaving else 1.0
            self.host.call_later(haste * self._scenario.conditions.pause * self._network.draw(), self.leave)

    def _leaves(self) -> bool:
        lost = any(isinstance(error, PeerLost) for error in self.endings.values())
        return self._scenario.leaves(self.rank) or (self._scenario.leave_after_loss and lost)

    # -- faults

    def give_up(self, index: int | None = None) -> None:
        """Cancel the caller in this call, or in the last one it has made."""
        index = max(self._open, default=-1) if index is None else index
        if index in self._open:
            collective, memory = self._open[index]
            self.gave_up_on.add(index)
            self.dispatcher.abort(collective, "its caller was cancelled", leaving=self._network.draw() < 0.3)
            self._ended(index, memory, None)

    def die(self, *, abrupt: bool) -> None:
        if not self.hung_up:
            self.host.alive = False
            for lane in self._network.lanes_of(self.rank):
                lane.close(abrupt=abrupt)

    def leave(self) -> None:
        self.left, self.left_at = True, self.host.time()
        self.dispatcher.say_goodbye("it is done")
        self.dispatcher.close(RingClosed("this ring has been left"))
        leaving = Leaving(
            links=self._network.links[self.rank],
            clock=self.host,
            timeout_seconds=TIMEOUT_SECONDS,
            warn_after_seconds=TIMEOUT_SECONDS / 2,
            heartbeats=self._life.heartbeats_of(self.rank),
            on_done=self._hang_up,
        )
        self._life.leaving(self.rank)
        self.dispatcher.peer_loss.leave(leaving)

    def _hang_up(self) -> None:
        self.hung_up = True
        for link in self._network.links[self.rank].values():
            link.abandon()
            link.heartbeat.close()


def _codec_policy(scenario: Scenario, rank: int, time: Callable[[], float]) -> CodecPolicy | None:
    codec_settings = scenario.codec_settings
    if codec_settings.codec == "none":
        return None
    return CodecPolicy(
        rank=rank,
        codecs=codec_settings.codecs(),
        auto=codec_settings.codec == "auto",
        allow_lossy=codec_settings.lossy,
        threshold_bytes=codec_settings.threshold_bytes,
        error_feedback=codec_settings.feedback,
        time=time,
    )
