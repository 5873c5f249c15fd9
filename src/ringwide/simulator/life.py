"""One life of a ring: ranks that call, a fault that strikes, and what must be true of everything that they get."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

import numpy as np

from ringwide.codec.registry import decoder
from ringwide.collective.coder import Coder
from ringwide.collective.collective import Collective
from ringwide.collective.dispatch import Dispatcher
from ringwide.collective.plan import Kind, Planner
from ringwide.errors import CollectiveAborted, CollectiveMismatch, PeerLeft, PeerLost, RingwideError
from ringwide.simulator.books import Books
from ringwide.simulator.memory import Material, Memory, bits
from ringwide.simulator.network import Network, VirtualClock
from ringwide.simulator.scenario import Call, FaultKind, Scenario, scenario_of
from ringwide.simulator.workshop import SimulatedWorkshop

TIMEOUT_SECONDS = 5.0
"""Far longer than any simulated way or wait: a collective that times out has stalled."""
_LEAVE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a seed."""

    seed: int
    scenario: Scenario
    problems: tuple[str, ...]
    events: int
    digest: str  # of everything that happened on the network, and when
    results: str  # of the numbers alone, which do not depend on time
    codecs: frozenset[str]  # with which segments have travelled
    interrupted: int  # jobs that were not done when their call failed


def simulate(seed: int, *, timing: int = 0) -> Outcome:
    """Live one life. Another `timing` gives the same ring, calls and fault other delays."""
    life = Life(seed, timing)
    events = life.run()
    results = blake2b(repr(sorted(life.results.items())).encode(), digest_size=8)
    return Outcome(
        seed=seed,
        scenario=life.scenario,
        problems=tuple(life.problems),
        events=events,
        digest=blake2b(life.network.log, digest_size=8).hexdigest(),
        results=results.hexdigest(),
        codecs=frozenset(life.codecs()),
        interrupted=life.interrupted,
    )


class RankClock:
    """A rank's view of the clock: nothing happens to the dead."""

    def __init__(self, clock: VirtualClock, rank: "Rank") -> None:
        self._clock, self._rank = clock, rank

    def time(self) -> float:
        return self._clock.time()

    def call_later(self, delay: float, callback: Callable[[], object], /) -> None:
        self._clock.call_later(delay, lambda: self._rank.alive and callback())


class Rank:
    """One rank and its caller, who makes one call after the other, and may leave when all have ended."""

    def __init__(self, life: "Life", rank: int) -> None:
        scenario = life.scenario
        self.rank, self.alive, self.left = rank, True, False
        self.endings: dict[int, RingwideError | None] = {}
        self.gave_up_on: int | None = None
        self.calls = scenario.calls_of(rank)
        self._life, self._network = life, life.network
        self._clock = RankClock(life.network.clock, self)
        self._open: dict[int, tuple[Collective, Memory]] = {}
        self.coder = _coder(scenario, rank, self._clock)
        self.workshop = SimulatedWorkshop(self._clock, life.network.chance, scenario.weather.toil)
        self.dispatcher = Dispatcher(
            rank=rank,
            links=life.network.links[rank],
            clock=self._clock,
            timeout_seconds=TIMEOUT_SECONDS,
            coder=self.coder,
            workshop=self.workshop,
        )

    # -- calling

    def call_later(self, index: int) -> None:
        if index < len(self.calls):
            pause = self._life.scenario.weather.pause * self._network.chance()
            self._clock.call_later(pause, lambda: self._call(index))

    def _call(self, index: int) -> None:
        call = self.calls[index]
        memory = Memory(self._life.material(index, call), self.rank, saves=self._network.chance() < 0.5)
        if self._life.scenario.fault.skips(self.rank, index):
            self.gave_up_on = index
            self.dispatcher.skip("its caller was cancelled before its turn came")
            self._ended(index, memory, None)
        else:
            self._submit(index, call, memory)
        if not call.awaited:
            self.call_later(index + 1)

    def _submit(self, index: int, call: Call, memory: Memory) -> None:
        plan = self._life.planners[self.rank].plan(call.request())
        try:
            collective = self.dispatcher.submit(plan, memory.numbers, lambda error: self._ended(index, memory, error))
        except RingwideError as error:
            self._ended(index, memory, error)
            return
        if index not in self.endings:
            self._open[index] = collective, memory
        self._life.maybe_strike(self, index)

    def _ended(self, index: int, memory: Memory, error: RingwideError | None) -> None:
        if index in self.endings:
            self._life.report(f"rank {self.rank}: call {index} ended twice")
        self.endings[index] = error
        self._open.pop(index, None)
        self._life.check_ending(self.rank, index, memory, error)
        memory.spoil()
        if self.calls[index].awaited:
            self.call_later(index + 1)
        if len(self.endings) == len(self.calls) and self._life.leaves(self.rank):
            self._clock.call_later(self._life.scenario.weather.pause * self._network.chance(), self.leave)

    # -- what may strike

    def give_up(self, index: int) -> None:
        if index in self._open:
            collective, memory = self._open[index]
            self.gave_up_on = index
            self.dispatcher.abort(collective, "its caller was cancelled")
            self._ended(index, memory, None)

    def die(self, *, abrupt: bool) -> None:
        if not self.left:
            self.alive = False
            for lane in self._network.lanes_of(self.rank):
                lane.close(abrupt=abrupt)

    def leave(self) -> None:
        self.left = True
        self.dispatcher.say_goodbye("it is done")
        for lane in self._network.lanes_of(self.rank):
            lane.finish()
        self._network.clock.call_later(_LEAVE_SECONDS, self._hang_up)

    def _hang_up(self) -> None:
        for lane in self._network.lanes_of(self.rank):
            lane.close()


class Life:
    """All ranks, the network between them, and everything that was wrong."""

    def __init__(self, seed: int, timing: int) -> None:
        self.scenario = scenario_of(seed)
        self.problems: list[str] = []
        self.results: dict[tuple[int, int], bytes] = {}
        self.interrupted = 0
        self._books = Books()
        self._ended: list[tuple[int, int, Memory]] = []
        self.planners = [_planner(self.scenario, rank) for rank in range(self.scenario.size)]
        self.network = Network(self.scenario, self.planners, Random(f"{seed} {timing}"), self.report)
        self.ranks = [Rank(self, rank) for rank in range(self.scenario.size)]
        self.network.dispatchers = [rank.dispatcher for rank in self.ranks]
        self._seed = seed
        self._materials: dict[tuple[int, Call], Material] = {}

    def run(self) -> int:
        for rank in self.ranks:
            rank.call_later(0)
        try:
            events = self.network.clock.run()
        except Exception as error:  # whatever a rank raises out of an event is a finding, not an accident
            self.report(f"{type(error).__name__}: {error}")
            return 0
        for rank in self.ranks:
            if rank.alive:
                self._check_rank(rank)
        self._check_what_remains()
        return events

    def material(self, index: int, call: Call) -> Material:
        key = index, call
        if key not in self._materials:
            self._materials[key] = Material(call, self.scenario.size, self.scenario.coding, [self._seed, index])
        return self._materials[key]

    def codecs(self) -> Iterator[str]:
        for rank in self.ranks:
            for ledger in rank.dispatcher.ledgers.values():
                yield from (codec.name for codec in map(decoder, ledger.received) if codec is not None)

    def maybe_strike(self, rank: Rank, index: int) -> None:
        fault = self.scenario.fault
        if (rank.rank, index) != (fault.rank, fault.call):
            return
        if fault.kind is FaultKind.ABORT:
            self.network.clock.call_later(fault.delay, lambda: rank.give_up(index))
        elif fault.kind is FaultKind.KILL:
            self.network.clock.call_later(fault.delay, lambda: rank.die(abrupt=fault.abrupt))

    def leaves(self, rank: int) -> bool:
        fault = self.scenario.fault
        return self.scenario.parting or (fault.kind is FaultKind.LEAVE and fault.rank == rank)

    # -- what must be true

    def report(self, problem: str) -> None:
        self.problems.append(problem)

    def check_ending(self, rank: int, index: int, memory: Memory, error: RingwideError | None) -> None:
        if any(lane.owes(index + 1) for lane in self.network.lanes_of(rank)):
            self.report(f"rank {rank}: call {index} ended, and its memory is still to be sent")
        self.network.over.add((rank, index + 1))
        self._ended.append((rank, index, memory))
        if error is None and self.ranks[rank].gave_up_on != index:
            self._check_numbers(rank, index, memory)
            self._books.note(index, memory)
            return
        self.interrupted += self.ranks[rank].workshop.pending
        if not memory.is_intact():
            self.report(f"rank {rank}: call {index} failed and changed its input")

    def _check_numbers(self, rank: int, index: int, memory: Memory) -> None:
        results = memory.results()
        for bucket, (got, expected) in enumerate(results):
            if expected is not None and not np.array_equal(got, expected):
                self.report(f"rank {rank}: call {index}, bucket {bucket} is {got}, must be {expected}")
        if not results:
            return
        whose = rank if self.scenario.calls[index].kind is Kind.REDUCE_SCATTER else -1
        ours = bits(results)
        if self.results.setdefault((index, whose), ours) != ours:
            self.report(f"rank {rank}: call {index} has other bits than on another rank")

    def _check_rank(self, rank: Rank) -> None:
        if rank.dispatcher.has_open_work():
            self.report(f"rank {rank.rank} still has open work")
        for index in range(len(rank.calls)):
            if index not in rank.endings:
                self.report(f"rank {rank.rank}: call {index} never ended")
            elif not self._allowed(rank, index, rank.endings[index]):
                self.report(f"rank {rank.rank}: call {index} ended with {rank.endings[index]!r}")

    def _check_what_remains(self) -> None:
        for rank, index, memory in self._ended:
            if not memory.was_left_alone():
                self.report(f"rank {rank}: call {index} was over when its memory was written to")
        if self.scenario.keeps_books and not self.problems:
            for mistake in self._books.mistakes(rank.coder.feedback for rank in self.ranks if rank.coder is not None):
                self.report(mistake)

    def _allowed(self, rank: Rank, index: int, error: RingwideError | None) -> bool:
        fault = self.scenario.fault
        match fault.kind:
            case FaultKind.MISMATCH if index == fault.call:
                return isinstance(error, CollectiveMismatch)
            case FaultKind.ABORT if index == fault.call:
                return error is None or isinstance(error, CollectiveAborted)
            case FaultKind.KILL:
                return error is None or isinstance(error, PeerLost)
            case FaultKind.LEAVE if index > fault.call:
                return isinstance(error, PeerLeft)
        return error is None


def _coder(scenario: Scenario, rank: int, clock: RankClock) -> Coder | None:
    coding = scenario.coding
    if coding.codec == "none":
        return None
    return Coder(
        rank=rank,
        codecs=coding.codecs(),
        auto=coding.codec == "auto",
        allow_lossy=coding.lossy,
        threshold_bytes=coding.threshold_bytes,
        error_feedback=coding.feedback,
        time=clock.time,
    )


def _planner(scenario: Scenario, rank: int) -> Planner:
    planner = Planner(
        rank=rank,
        size=scenario.size,
        segment_bytes=scenario.segment_bytes,
        algorithm=scenario.algorithm,
        doubling_bytes=scenario.doubling_bytes,
        express_bytes=scenario.express_bytes,
    )
    planner.crowded = scenario.crowded
    return planner
