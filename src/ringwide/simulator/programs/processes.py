"""Programs on real processes, which form rings over every transport. The verdict on their journals is the same.

One ring runs many programs, one after the other, as long as none of them ends it.
"""

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from random import Random
from typing import Any, Self

from ringwide.config.ring_config import RingConfig
from ringwide.ring import join
from ringwide.simulator.programs.drawing import program_of
from ringwide.simulator.programs.journal import RankJournal
from ringwide.simulator.programs.program import Leave, Program
from ringwide.simulator.programs.runner import ProgramRunner
from ringwide.simulator.programs.verdict import goes_astray, verdict
from ringwide.simulator.ring_life import Tried, quiet

_TRANSPORTS: tuple[Mapping[str, Any], ...] = (
    {"same_host": "auto"},
    {"same_host": "unix"},
    {"same_host": "tcp"},
    {"same_host": "auto", "algorithm": "ring"},  # sends even small tensors as bulk
    {"same_host": "tcp", "algorithm": "ring"},
)
_MOST_ON_ONE_RING = 12
_LONGEST_PAUSE_SECONDS = 0.05
_COLLECTIVE_SECONDS = 10.0
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RingSession:
    """Programs that one ring runs, and its settings."""

    size: int
    settings: Mapping[str, Any]
    programs: tuple[Program, ...]


@dataclass(frozen=True, slots=True)
class ProcessProgram:
    """Outcome of a program on real processes."""

    program: Program
    problems: tuple[str, ...]
    settings: Mapping[str, Any]
    events: int = 0

    @property
    def seed(self) -> int:
        return self.program.seed

    @property
    def story(self) -> str:
        return f"{self.program.size} processes, {dict(self.settings)}:\n{self.program}"


def try_programs(first: int, count: int) -> Iterator[Tried]:
    """Run `count` programs, ring by ring."""
    programs = [program_of(seed) for seed in range(first, first + count)]
    with ProgramProcesses(max(program.size for program in programs)) as processes:
        for session in ring_sessions(programs):
            outcomes = processes.run(session)
            failing = tuple(one for one in outcomes if one.problems)
            yield Tried(len(outcomes), sum(one.events for one in outcomes), failing)


def ring_sessions(programs: Sequence[Program]) -> Iterator[RingSession]:
    """Programs grouped by ring. Those that end a ring or leave it out of step get one of their own."""
    rng = Random(programs[0].seed)
    lasting: dict[int, list[Program]] = {}
    for program in programs:
        if any(isinstance(step, Leave) for step in program.steps) or goes_astray(program):
            yield RingSession(program.size, rng.choice(_TRANSPORTS), (program,))
        else:
            lasting.setdefault(program.size, []).append(program)
    for size, some in lasting.items():
        rest = iter(some)
        while batch := tuple(islice(rest, _MOST_ON_ONE_RING)):
            yield RingSession(size, rng.choice(_TRANSPORTS), batch)


class ProgramProcesses:
    """Processes that form one ring after the other."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")  # not forked: the caller may have threads
        self._members: list[tuple[BaseProcess, Connection]] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            self._members.append((process, ours))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process, connection in self._members:
            process.kill()
            process.join()
            connection.close()

    def run(self, session: RingSession) -> list[ProcessProgram]:
        members = [connection for _, connection in self._members[: session.size]]
        for member in members:
            member.send(session)
        peers = [f"127.0.0.1:{_answer(member)}" for member in members]
        for member in members:
            member.send(peers)
        by_rank = [_answer(member) for member in members]  # and then by program
        return [
            ProcessProgram(program, tuple(verdict(program, journals)), session.settings, events=len(journals))
            for program, *journals in zip(session.programs, *by_rank, strict=True)
        ]


def _answer(member: Connection) -> Any:
    if not member.poll(_PATIENCE_SECONDS):
        raise TimeoutError(f"a process has not answered for {_PATIENCE_SECONDS:g} s")
    return member.recv()


# -- in each process


def _serve(rank: int, parent: Connection) -> None:
    quiet()
    while True:
        session: RingSession = parent.recv()
        listener = socket.create_server(("127.0.0.1", 0))
        parent.send(listener.getsockname()[1])
        parent.send(asyncio.run(_run_session(session, rank, parent.recv(), listener)))


async def _run_session(
    session: RingSession, rank: int, peers: Sequence[str], listener: socket.socket
) -> list[RankJournal]:
    journals = [RankJournal() for _ in session.programs]
    complain = journals[-1].complaints.append
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complain(f"{context['message']}: {context.get('exception')!r}"))
    config = RingConfig(collective_timeout_seconds=_COLLECTIVE_SECONDS, **session.settings)
    try:
        async with join(rank=rank, peers=peers, config=config, listener=listener) as ring:
            for program, journal in zip(session.programs, journals, strict=True):
                await ProgramRunner(ring, program, _compute, journal, longest_seconds=_LONGEST_PAUSE_SECONDS).run()
    except Exception as error:
        complain(f"the ring ended with {error!r}")
    for journal in journals:
        journal.conclude()
    return journals


async def _compute(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - blocking the loop is the purpose
    await asyncio.sleep(0)
