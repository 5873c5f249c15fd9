"""The same programs on real processes: they form rings over every transport, and their journals are judged alike.

One ring carries many programs, one after the other, as long as none of them ends it.
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
from ringwide.simulator.life import Tried, quiet
from ringwide.simulator.programs.drawing import program_of
from ringwide.simulator.programs.journal import RankJournal
from ringwide.simulator.programs.performer import Performer
from ringwide.simulator.programs.program import Leave, Program
from ringwide.simulator.programs.verdict import goes_astray, verdict

_TRANSPORTS: tuple[Mapping[str, Any], ...] = (
    {"same_host": "auto"},
    {"same_host": "unix"},
    {"same_host": "tcp"},
    {"same_host": "auto", "algorithm": "ring"},  # by which even what is small is bulk
    {"same_host": "tcp", "algorithm": "ring"},
)
_MOST_ON_ONE_RING = 12
_LONGEST_PAUSE_SECONDS = 0.05
_COLLECTIVE_SECONDS = 10.0
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Engagement:
    """What one ring carries out."""

    size: int
    settings: Mapping[str, Any]
    programs: tuple[Program, ...]


@dataclass(frozen=True, slots=True)
class RealPerformance:
    """What became of a program on real processes."""

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
    """Carry out so many programs, ring by ring."""
    programs = [program_of(seed) for seed in range(first, first + count)]
    with Troupe(max(program.size for program in programs)) as troupe:
        for engagement in engagements(programs):
            performances = troupe.perform(engagement)
            failing = tuple(one for one in performances if one.problems)
            yield Tried(len(performances), sum(one.events for one in performances), failing)


def engagements(programs: Sequence[Program]) -> Iterator[Engagement]:
    """Programs that end a ring, or leave it in disorder, have one of their own."""
    chance = Random(programs[0].seed)
    lasting: dict[int, list[Program]] = {}
    for program in programs:
        if any(isinstance(step, Leave) for step in program.steps) or goes_astray(program):
            yield Engagement(program.size, chance.choice(_TRANSPORTS), (program,))
        else:
            lasting.setdefault(program.size, []).append(program)
    for size, some in lasting.items():
        rest = iter(some)
        while batch := tuple(islice(rest, _MOST_ON_ONE_RING)):
            yield Engagement(size, chance.choice(_TRANSPORTS), batch)


class Troupe:
    """Processes that form one ring after the other."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")  # not forked: whoever calls may have threads
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

    def perform(self, engagement: Engagement) -> list[RealPerformance]:
        members = [connection for _, connection in self._members[: engagement.size]]
        for member in members:
            member.send(engagement)
        peers = [f"127.0.0.1:{_answer(member)}" for member in members]
        for member in members:
            member.send(peers)
        parts = [_answer(member) for member in members]  # by rank, and then by program
        return [
            RealPerformance(program, tuple(verdict(program, journals)), engagement.settings, events=len(journals))
            for program, *journals in zip(engagement.programs, *parts, strict=True)
        ]


def _answer(member: Connection) -> Any:
    if not member.poll(_PATIENCE_SECONDS):
        raise TimeoutError(f"a process has said nothing for {_PATIENCE_SECONDS:g} s")
    return member.recv()


# In each process


def _serve(rank: int, parent: Connection) -> None:
    quiet()
    while True:
        engagement: Engagement = parent.recv()
        listener = socket.create_server(("127.0.0.1", 0))
        parent.send(listener.getsockname()[1])
        parent.send(asyncio.run(_carried_out(engagement, rank, parent.recv(), listener)))


async def _carried_out(
    engagement: Engagement, rank: int, peers: Sequence[str], listener: socket.socket
) -> list[RankJournal]:
    journals = [RankJournal() for _ in engagement.programs]
    complain = journals[-1].complaints.append
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complain(f"{context['message']}: {context.get('exception')!r}"))
    config = RingConfig(collective_timeout_seconds=_COLLECTIVE_SECONDS, **engagement.settings)
    try:
        async with join(rank=rank, peers=peers, config=config, listener=listener) as ring:
            for program, journal in zip(engagement.programs, journals, strict=True):
                await Performer(ring, program, _compute, journal, longest_seconds=_LONGEST_PAUSE_SECONDS).perform()
    except Exception as error:
        complain(f"the ring ended with {error!r}")
    for journal in journals:
        journal.conclude()
    return journals


async def _compute(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - this is what it is about
    await asyncio.sleep(0)
