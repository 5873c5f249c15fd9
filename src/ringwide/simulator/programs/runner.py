"""Runner of a program: one rank carries it out, on any event loop, and records how every call ends."""

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from ringwide.ring import Ring
from ringwide.simulator.programs.journal import ProgramNumbers, RankJournal
from ringwide.simulator.programs.program import (
    Abandon,
    AbandonKind,
    Await,
    Branch,
    Cancel,
    FinishTask,
    Gather,
    Leave,
    Mistake,
    Pause,
    Program,
    ProgramCall,
    SameMemory,
    StartTask,
    Step,
    TaskGroupStep,
    WaitFor,
)

Compute = Callable[[float], Awaitable[None]]
"""compute(seconds): blocks the loop for this long."""
Tasks = dict[int, tuple[asyncio.Task[Any], ProgramCall | None]]


class _Sibling(Exception):
    """Failure of a sibling in a task group."""


class _Left(Exception):
    """This rank leaves the ring."""


class ProgramRunner:
    """Runs the steps of a program as a user of a ring would, but goes on after every failure."""

    def __init__(
        self, ring: Ring, program: Program, compute: Compute, journal: RankJournal, *, longest_seconds: float = inf
    ) -> None:
        self.journal = journal
        self._ring, self._program, self._compute, self._longest = ring, program, compute, longest_seconds

    async def run(self) -> None:
        with suppress(_Left):
            await self._strand(self._program.steps)
        self.journal.through = True

    async def _strand(self, steps: Sequence[Step]) -> None:
        tasks: Tasks = {}
        try:
            for step in steps:
                await self._step(step, tasks)
        finally:  # a cancelled branch cancels its own tasks too
            for number in [*tasks]:
                tasks[number][0].cancel()
                await self._finish(number, tasks)

    async def _step(self, step: Step, tasks: Tasks) -> None:
        match step:
            case Await(call):
                await self._ended(call, self._made(call))
            case StartTask(task, call):
                tasks[task] = asyncio.create_task(self._made(call)), call
            case Branch(task, steps, _):
                tasks[task] = asyncio.create_task(self._strand(steps)), None
            case Cancel(task, after):
                await self._cancel(task, after, tasks)
            case FinishTask(task):
                await self._finish(task, tasks)
            case Gather(calls):
                await self._gather(calls, [self._made(call) for call in calls])
            case SameMemory(calls):
                first = self._made(calls[0])
                second = self._made(calls[1], self.journal.entries[calls[0].index].memory)
                await self._gather(calls, [first, second])
            case TaskGroupStep(calls, fails):
                await self._group(calls, fails.get(self._ring.rank))
            case WaitFor(call, seconds):
                await self._wait_for(call, seconds.get(self._ring.rank))
            case Abandon(call, ways):
                await self._abandon(call, ways.get(self._ring.rank))
            case Pause(rank, seconds, computes):
                if rank == self._ring.rank:
                    await (self._compute if computes else asyncio.sleep)(min(seconds, self._longest))
            case Leave(rank):
                if rank == self._ring.rank:
                    raise _Left

    # -- calls

    def _made(self, call: ProgramCall, memory: Sequence[Any] | None = None) -> Any:
        numbers = ProgramNumbers(call, self._ring.rank, self._ring.size, memory)
        self.journal.open(call.index, numbers.memory)
        given = numbers.arguments()
        if call.channel:
            given["channel"] = call.channel
        made = getattr(self._ring, call.kind.value)(**given)
        if call.mistakes.get(self._ring.rank) is Mistake.FROZEN:
            numbers.freeze()
        return made

    async def _ended(self, call: ProgramCall, awaitable: Awaitable[Any]) -> None:
        try:
            outcome = await awaitable
        except asyncio.CancelledError as error:  # of the task around it: nothing else cancels here
            self.journal.close(call.index, error)
            raise
        except Exception as error:
            outcome = error
        self.journal.close(call.index, outcome)

    async def _wait_for(self, call: ProgramCall, seconds: float | None) -> None:
        before = _cancellations()
        await self._ended(call, asyncio.wait_for(self._made(call), seconds))
        if _cancellations() > before:  # Python 3.11 swallows it if the call is done at that moment
            raise asyncio.CancelledError

    async def _gather(self, calls: Sequence[ProgramCall], awaitables: Sequence[Awaitable[Any]]) -> None:
        tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._close_all(calls, tasks)

    async def _group(self, calls: Sequence[ProgramCall], fails_after: int | None) -> None:
        tasks: list[asyncio.Task[Any]] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks += [group.create_task(self._made(call)) for call in calls]
                if fails_after == 0:
                    raise _Sibling  # before the first turn of any of them
                if fails_after is not None:
                    group.create_task(_failing(fails_after))
        except* Exception:
            pass
        finally:
            self._close_all(calls, tasks)

    def _close_all(self, calls: Sequence[ProgramCall], tasks: Sequence[asyncio.Future[Any]]) -> None:
        for call, task in zip(calls, tasks, strict=True):
            self.journal.close(call.index, _outcome_of(task))

    async def _abandon(self, call: ProgramCall, way: AbandonKind | None) -> None:
        made = self._made(call)
        match way:
            case None:
                await self._ended(call, made)
            case AbandonKind.CLOSED:
                made.close()
            case AbandonKind.DROPPED:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that it was never awaited
                    del made
            case AbandonKind.BEGUN:
                self._begin_and_close(call, made)

    def _begin_and_close(self, call: ProgramCall, made: Any) -> None:
        """Await for a moment and close, as when a generator that awaits is closed."""
        try:
            made.send(None)
        except StopIteration as stop:
            self.journal.close(call.index, stop.value)
        except Exception as error:
            self.journal.close(call.index, error)
        else:
            made.close()

    # -- tasks

    async def _cancel(self, number: int, after: Mapping[int, int], tasks: Tasks) -> None:
        turns = after.get(self._ring.rank)
        if turns is not None and number in tasks:
            for _ in range(turns):
                await asyncio.sleep(0)
            tasks[number][0].cancel()

    async def _finish(self, number: int, tasks: Tasks) -> None:
        task, call = tasks[number]
        await asyncio.wait([task])
        del tasks[number]
        outcome = _outcome_of(task)
        if call is not None:
            self.journal.close(call.index, outcome)
        elif isinstance(outcome, Exception):
            self.journal.complaints.append(f"task {number} ended with {outcome!r}")


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def _failing(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    raise _Sibling


def _outcome_of(task: asyncio.Future[Any]) -> object:
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or task.result()
