"""Life of a simulated ring: ranks that call, faults that are injected, and the checks of everything they get."""

import gc
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from math import inf
from random import Random
from typing import Protocol

import numpy as np

from ringwide.collectives.plan import CollectiveKind, Plan, Planner
from ringwide.compression.codecs.registry import decoder
from ringwide.errors import RingwideError
from ringwide.protocol.frame import key_of
from ringwide.simulator.calls import CallNumbers, SimulatedCall, SimulatedMemory, bits
from ringwide.simulator.lane import SimulatedLane
from ringwide.simulator.network import Network
from ringwide.simulator.rank import Rank, SimulatedHeartbeats
from ringwide.simulator.scenario import Fault, FaultKind, Scenario, scenario_of
from ringwide.simulator.verdict import (
    FeedbackLedger,
    explains,
    follows,
    is_deaf,
    must_fail,
    patience,
    was_busy,
    woken_at,
)

_EXPRESS_SHARE = 0.5
"""Share of single-lane resets that hit the express lane, without which they are hardest to notice."""


def inject(network: Network, fault: Fault) -> None:
    """Inject a fault of connections or hosts now."""
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
            used[int(network.draw() * len(used))].damage = fault.damage


def _reset(network: Network, fault: Fault) -> None:
    lanes = network.links[fault.rank][fault.peer].connections
    if not fault.wide:
        express = network.draw() < _EXPRESS_SHARE
        lanes = lanes[:1] if express else [lanes[int(network.draw() * len(lanes))]]
    for lane in lanes:
        if fault.inward:
            network.clock.call_later(network.delay(), lane.break_off)
        if fault.outward:
            network.clock.call_later(network.delay(), lane.other.break_off)


def _open_holes(network: Network, fault: Fault) -> None:
    for lane in _holed_lanes(network, fault):
        lane.open_hole()
        if fault.lasts < inf:
            network.clock.call_later(fault.lasts, lane.close_hole)


def _holed_lanes(network: Network, fault: Fault) -> Iterator[SimulatedLane]:
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


_HASTE = 0.1
"""Factor for the delay of faults that hit a leaving rank: it does not take long to leave."""


@dataclass(frozen=True, slots=True)
class LifeOutcome:
    """Outcome of a seed."""

    seed: int
    scenario: Scenario
    problems: tuple[str, ...]
    events: int
    digest: str  # of everything on the network, with its times
    results: str  # digest of the numbers alone, which do not depend on time
    codecs: frozenset[str]  # with which segments were sent
    interrupted: int  # codec jobs that were not done when their call failed
    injected: int  # number of faults
    errors: frozenset[str]  # classes of the errors with which calls ended

    @property
    def story(self) -> str:
        return str(self.scenario)


def simulate(seed: int, *, timing: int = 0) -> LifeOutcome:
    """Simulate one life. Another `timing` gives the same ring, calls and faults other delays."""
    life = Life(seed, timing)
    events = life.run()
    results = blake2b(repr(sorted(life.results.items())).encode(), digest_size=8)
    outcome = LifeOutcome(
        seed=seed,
        scenario=life.scenario,
        problems=tuple(life.problems),
        events=events,
        digest=blake2b(life.network.log, digest_size=8).hexdigest(),
        results=results.hexdigest(),
        codecs=frozenset(life.codecs()),
        interrupted=life.interrupted,
        injected=len(life.injected),
        errors=frozenset(type(error).__name__ for rank in life.ranks for error in rank.endings.values() if error),
    )
    life.dissolve()
    return outcome


class Life:
    """One life: all ranks, the network between them, and the problems found."""

    def __init__(self, seed: int, timing: int) -> None:
        self.scenario = scenario_of(seed)
        self.problems: list[str] = []
        self.results: dict[tuple[int, int], bytes] = {}
        self.interrupted = 0
        self.injected: list[tuple[float, Fault]] = []
        self._seed = seed
        self._feedback = FeedbackLedger()
        self._ended: list[tuple[int, int, SimulatedMemory]] = []
        self._call_numbers: dict[tuple[int, SimulatedCall], CallNumbers] = {}
        planners = [_planner(self.scenario, rank) for rank in range(self.scenario.size)]
        self._planners, self._plans = planners, dict[tuple[int, SimulatedCall], Plan]()
        self.network = Network(self.scenario, planners, Random(seed * 1_000_003 + timing), self.report)
        self.ranks = [Rank(self, rank) for rank in range(self.scenario.size)]
        self.network.dispatchers = [rank.dispatcher for rank in self.ranks]
        self._connect_heartbeats()

    def _connect_heartbeats(self) -> None:
        self._heartbeats: list[SimulatedHeartbeats] = []
        for rank in self.ranks:
            self._heartbeats.append(
                SimulatedHeartbeats(rank.rank, self.network, self._heartbeats, rank.dispatcher.peer_loss.silent)
            )
            rank.dispatcher.deadlines.start(self._heartbeats[-1])

    def heartbeats_of(self, rank: int) -> SimulatedHeartbeats:
        return self._heartbeats[rank]

    def run(self) -> int:
        for rank in self.ranks:
            rank.call_later(0)
        try:
            events = self.network.clock.run()
        except Exception as error:  # whatever a rank raises out of an event is a finding
            self.report(f"{type(error).__name__}: {error}")
            return 0
        for rank in self.ranks:
            if rank.host.alive and not rank.host.frozen:
                self._check_rank(rank)
        self._check_what_remains()
        return events

    def dissolve(self) -> None:
        """Break all reference cycles: finding them would take the garbage collector a quarter of the time of a life."""
        for rank in self.ranks:
            for lane in self.network.lanes_of(rank.rank):
                lane.dissolve()
        for part in (*self._heartbeats, *self.network.dispatchers, *self.ranks, self.network):
            vars(part).clear()
        self._heartbeats.clear()

    def call_numbers(self, index: int, call: SimulatedCall) -> CallNumbers:
        key = index, call
        if key not in self._call_numbers:
            self._call_numbers[key] = CallNumbers(
                call, self.scenario.size, self.scenario.codec_settings, 10 * self._seed + index
            )
        return self._call_numbers[key]

    def plan(self, rank: int, call: SimulatedCall) -> Plan:
        key = rank, call
        if key not in self._plans:
            self._plans[key] = self._planners[rank].plan(call.request)
        return self._plans[key]

    def codecs(self) -> Iterator[str]:
        for rank in self.ranks:
            for ledger in rank.dispatcher.ledgers.values():
                yield from (codec.name for codec in map(decoder, ledger.received) if codec is not None)

    # -- faults

    def submitted(self, rank: int, index: int) -> None:
        """A rank has made a call: some time after that, faults are injected."""
        first = self.scenario.fault
        if (rank, index) == (first.rank, first.call) and not self.scenario.kills_while_leaving:
            self._inject_soon()

    def leaving(self, rank: int) -> None:
        if rank == self.scenario.fault.rank and self.scenario.kills_while_leaving:
            self._inject_soon(_HASTE)

    def _inject_soon(self, haste: float = 1.0) -> None:
        first, *others = self.scenario.faults
        if first.kind is FaultKind.NONE:
            return
        delay = first.delay * haste
        self.network.clock.call_later(delay, partial(self._inject, first))
        for second in others:
            self.network.clock.call_later(delay + second.delay, partial(self._inject, second))

    def _inject(self, fault: Fault) -> None:
        rank = self.ranks[fault.rank]
        if fault.kind is FaultKind.KILL and rank.hung_up:
            return
        self.injected.append((self.network.clock.now, fault))
        if fault.kind is FaultKind.ABORT:
            index = fault.call if fault is self.scenario.fault else None
            rank.host.run(lambda: rank.give_up(index))
        elif fault.kind is FaultKind.KILL:
            rank.die(abrupt=fault.abrupt)
        else:
            inject(self.network, fault)

    # -- checks

    def report(self, problem: str) -> None:
        self.problems.append(problem)

    def check_ending(self, rank: int, index: int, memory: SimulatedMemory, error: RingwideError | None) -> None:
        key = key_of(self.scenario.epoch, index + 1)
        if any(lane.owes(key) for lane in self.network.lanes_of(rank)):
            self.report(f"rank {rank}: call {index} ended, and its memory is still to be sent")
        self.network.over.add((rank, key))
        self._ended.append((rank, index, memory))
        if error is None and index not in self.ranks[rank].gave_up_on:
            self._check_numbers(rank, index, memory)
            self._feedback.note(index, memory)
            return
        self.interrupted += self.ranks[rank].codec_pool.pending
        if not memory.is_intact():
            self.report(f"rank {rank}: call {index} failed and changed its input")

    def _check_numbers(self, rank: int, index: int, memory: SimulatedMemory) -> None:
        results = memory.results()
        for bucket, (got, expected) in enumerate(results):
            if expected is not None and not np.array_equal(got, expected):
                self.report(f"rank {rank}: call {index}, bucket {bucket} is {got}, must be {expected}")
        if not results:
            return
        whose = rank if self.scenario.calls[index].kind is CollectiveKind.REDUCE_SCATTER else -1
        ours = bits(results)
        if self.results.setdefault((index, whose), ours) != ours:
            self.report(f"rank {rank}: call {index} has other bits than on another rank")

    def _check_rank(self, rank: Rank) -> None:
        if rank.dispatcher.has_open_work:
            self.report(f"rank {rank.rank} still has open work")
        for index in range(len(rank.calls)):
            if index not in rank.endings:
                self.report(f"rank {rank.rank}: call {index} never ended")
            elif not self._allowed(rank, index, rank.endings[index]):
                self.report(f"rank {rank.rank}: call {index} ended with {rank.endings[index]!r}")
            elif rank.endings[index] is not None and (late := rank.ended_at[index] - self._deadline(rank, index)) > 0:
                self.report(f"rank {rank.rank}: call {index} ended {late:.2f} s late with {rank.endings[index]!r}")

    def _allowed(self, rank: Rank, index: int, error: RingwideError | None) -> bool:
        faults = self.scenario.faults
        if is_deaf(self.scenario, error):
            return True
        if error is None:
            return index in rank.gave_up_on or not must_fail(self.scenario.fault, index)
        if follows(error, faults, [other.left for other in self.ranks]) or was_busy(rank.rank, error, faults):
            return True
        return any(explains(fault, rank.rank, index, error, second=fault is not faults[0]) for fault in faults)

    def _deadline(self, rank: Rank, index: int) -> float:
        """Latest time at which a call may fail: some time after all ranks have made it and all faults have happened."""
        injected = max((time for time, _ in self.injected), default=0.0)
        called = max(other.called_at.get(index, 0.0) for other in self.ranks)
        left = max(other.left_at for other in self.ranks) if self.scenario.fault.kind is FaultKind.LEAVE else 0.0
        return max(injected, called, left, woken_at(rank.rank, self.injected)) + patience(self.scenario)

    def _check_what_remains(self) -> None:
        for rank, index, memory in self._ended:
            if not memory.was_left_alone():
                self.report(f"rank {rank}: call {index} was over when its memory was written to")
        if self.scenario.checks_feedback and not self.problems:
            for mistake in self._feedback.mistakes(
                rank.codec_policy.feedback for rank in self.ranks if rank.codec_policy is not None
            ):
                self.report(mistake)


def _planner(scenario: Scenario, rank: int) -> Planner:
    return Planner(
        rank=rank,
        size=scenario.size,
        segment_bytes=scenario.segment_bytes,
        algorithm=scenario.algorithm,
        tree_bytes=scenario.tree_bytes,
        express_bytes=scenario.express_bytes,
        fanout=scenario.fanout,
    )


# -- many seeds, on several cores

_BATCH = 100


class Trial(Protocol):
    """Outcome of one seed, of a life or of a program."""

    @property
    def seed(self) -> int: ...

    @property
    def problems(self) -> tuple[str, ...]: ...

    @property
    def events(self) -> int: ...

    @property
    def story(self) -> str:
        """Description of the seed for people."""
        ...


Try = Callable[[int], Trial]
"""try(seed): runs in any process, so it must be a function at module level."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Outcome of a batch of seeds: their number, and those that fail."""

    seeds: int
    events: int
    failing: tuple[Trial, ...]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def try_seeds(first: int, count: int, *, jobs: int, try_one: Try | None = None) -> Iterator[Tried]:
    """Try `count` seeds, batch by batch. By default each is a whole life of a ring."""
    try_batch = partial(_try_batch, try_one)
    batches = [range(start, min(start + _BATCH, first + count)) for start in range(first, first + count, _BATCH)]
    if jobs == 1 or len(batches) == 1:
        yield from map(try_batch, batches)
        return
    # not forked: the caller may have threads
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(batches)), _prepare) as pool:
        yield from pool.imap_unordered(try_batch, batches)


def _prepare() -> None:
    quiet()
    gc.freeze()  # imported modules are never garbage


def quiet() -> None:
    """Silence the log: many lives cause warnings."""
    logging.getLogger("ringwide").addHandler(logging.NullHandler())
    logging.getLogger("ringwide").propagate = False


def _try_batch(try_one: Try | None, seeds: range) -> Tried:
    outcomes = [(try_one or simulate)(seed) for seed in seeds]
    failing = tuple(outcome for outcome in outcomes if outcome.problems)
    return Tried(len(seeds), sum(outcome.events for outcome in outcomes), failing)
