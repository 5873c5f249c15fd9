"""World of a simulated program: all its ranks on one virtual clock."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from random import Random

from ringwide.collectives.plan import Planner
from ringwide.ring import Ring
from ringwide.runtime.caller_identity import noted_descent
from ringwide.runtime.engine import Engine
from ringwide.simulator.calls import CodecSettings
from ringwide.simulator.host import Conditions
from ringwide.simulator.programs.drawing import program_of
from ringwide.simulator.programs.engine import SimulatedCore, Wires, counter
from ringwide.simulator.programs.journal import RankJournal
from ringwide.simulator.programs.program import Program
from ringwide.simulator.programs.runner import ProgramRunner
from ringwide.simulator.programs.verdict import verdict
from ringwide.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class SimulatedProgram:
    """Outcome of a program on simulated ranks."""

    seed: int
    program: Program
    problems: tuple[str, ...]
    events: int
    digest: str  # of everything on the network, with its times
    errors: frozenset[str]  # classes of the errors with which calls ended

    @property
    def story(self) -> str:
        return f"{self.program.size} ranks:\n{self.program}"


def run_program(seed: int, program: Program | None = None, *, timing: int = 0) -> SimulatedProgram:
    """Run the program of a seed. Another `timing` gives it other delays."""
    world = World(program_of(seed) if program is None else program, Random(seed * 1_000_003 + timing))
    events = world.run()
    outcome = SimulatedProgram(
        seed=seed,
        program=world.program,
        problems=(*world.problems, *verdict(world.program, world.journals)),
        events=events,
        digest=blake2b(world.wires.log, digest_size=8).hexdigest(),
        errors=frozenset(_errors(world.journals)),
    )
    world.dissolve()
    return outcome


class World:
    """Ranks of a program and the network between them."""

    def __init__(self, program: Program, rng: Random) -> None:
        self.program, self.problems = program, list[str]()
        scenario = _scenario(program.size, rng)
        planners = [_planner(scenario, rank) for rank in range(program.size)]
        if program.misconfigured is not None:
            planners[program.misconfigured] = _planner(_other_settings(scenario, rng), program.misconfigured)
        turn_seconds = [rng.choice((1e-6, 1e-4, 3e-3)) for _ in planners]
        self.wires = Wires(
            scenario,
            planners,
            rng,
            self.problems.append,
            turn_seconds=turn_seconds,
            poll_success=rng.choice((0.0, 0.5, 1.0)),
        )
        self.loops = [self.wires.loop_of(rank) for rank in range(program.size)]
        self.journals = [RankJournal() for _ in self.loops]
        self._planners = planners
        self._engines: dict[int, Engine] = {}
        self._formed = [loop.create_future() for loop in self.loops]

    def _compute(self, rank: int) -> Callable[[float], Awaitable[None]]:
        host = self.wires.hosts[rank]

        async def compute(seconds: float) -> None:
            host.freeze()
            self.wires.clock.call_later(seconds, host.thaw)
            await asyncio.sleep(0)

        return compute

    def run(self) -> int:
        for rank, loop in enumerate(self.loops):
            loop.create_task(self._run_rank(rank))
        try:
            events = self.wires.clock.run()
        except Exception as error:  # whatever an event raises is a finding
            self.problems.append(f"{type(error).__name__}: {error}")
            events = 0
        for rank, loop in enumerate(self.loops):
            self.journals[rank].conclude()
            self.problems += [f"rank {rank}: {complaint}" for complaint in loop.complaints]
            left = sum(not task.done() for task in loop.tasks)
            if left and self.journals[rank].through:
                self.problems.append(f"rank {rank}: {left} tasks are left")
        return events

    async def _run_rank(self, rank: int) -> None:
        """Join the ring, run the program and leave, as a user does."""
        with noted_descent() as descent:
            core = SimulatedCore(rank, self.wires, self._planners[rank])
            engine = self._engines[rank] = Engine(core, core.formed, descent, time=counter())
            await self._form_ring(rank)
            await ProgramRunner(Ring(engine), self.program, self._compute(rank), self.journals[rank]).run()
            await self._leave(rank, engine)

    async def _form_ring(self, rank: int) -> None:
        """Wait until all ranks have joined."""
        if len(self._engines) == self.program.size:
            self.wires.dispatchers = [self._engines[rank].dispatcher for rank in range(self.program.size)]
            for formed in self._formed:
                formed.set_result(None)
        await self._formed[rank]

    async def _leave(self, rank: int, engine: Engine) -> None:
        leaving = self.loops[rank].create_task(engine.leave("it is done"))
        turns = self.program.cut_of(rank)
        while turns is not None and turns >= 0 and not leaving.done():
            turns -= 1
            await asyncio.sleep(0)
        if turns is not None:
            leaving.cancel()

    def dissolve(self) -> None:
        """Close the loops, and break all reference cycles."""
        for loop in self.loops:
            loop.close()
        for rank in range(self.program.size):
            for lane in self.wires.lanes_of(rank):
                lane.dissolve()
        for part in (*self.wires.dispatchers, *self._engines.values(), self.wires):
            vars(part).clear()


def _scenario(size: int, rng: Random) -> Scenario:
    latency = rng.choice((1e-4, 1e-2))
    return Scenario(
        size=size,
        algorithm=rng.choice(("auto", "auto", "ring", "tree")),
        fanout=rng.randint(1, max(1, size - 1)),
        epoch=rng.choice((0, 7)),
        sealed=False,
        copies_sends=rng.random() < 0.4,
        segment_bytes=rng.choice((40, 64, 256)),
        tree_bytes=rng.choice((0, 32, 128)),
        express_bytes=rng.choice((32, 4096)),
        staging_bytes=rng.choice((0, 400)),
        lanes=rng.randint(1, 2),
        codec_settings=CodecSettings(),
        calls=(),
        faults=(),
        conditions=Conditions(
            latency=latency,
            pause=0.0,
            taken_at_once=rng.choice((0.0, 0.7, 1.0)),
            split=rng.choice((0.0, 0.0, 0.0, 0.2)),
            late_read=rng.choice((0.0, 0.0, 0.0, 0.4)),
            codec_delay=0.0,
            capacity_bytes=rng.choice((100, 1_000_000, 1_000_000)),
        ),
        leave_when_done=True,
        leave_after_loss=False,
    )


def _other_settings(scenario: Scenario, rng: Random) -> Scenario:
    """Slightly different settings, for the misconfigured rank."""
    if rng.random() < 0.5:
        return replace(scenario, segment_bytes=scenario.segment_bytes - 8)
    return replace(scenario, tree_bytes=160 - scenario.tree_bytes)


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


def _errors(journals: list[RankJournal]) -> set[str]:
    endings = [entry.ending for journal in journals for entry in journal.entries.values()]
    return {ending.error for ending in endings if ending is not None and ending.error}
