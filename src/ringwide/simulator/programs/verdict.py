"""Verdict on a program: compares the journals of its ranks with what must be true, whatever the ranks do.

- A result is exact, and exists only if all ranks took part. (No rank returns a wrong number.)
- A call that nothing keeps from succeeding succeeds on all ranks: also after one that failed, next to others that fail,
  and if a rank leaves as soon as it is done. (Identity at the call; done means delivered.)
- An error is the caller's own mistake or cancellation, or one of ours that names the rank that caused it.
- After an error memory holds what it held before, and keeps it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.simulator.programs.journal import (
    CallEnding,
    JournalEntry,
    RankJournal,
    decides,
    expected_memory,
    expected_result,
)
from ringwide.simulator.programs.program import (
    Abandon,
    Await,
    Branch,
    Cancel,
    FinishTask,
    Gather,
    Leave,
    Mistake,
    Program,
    ProgramCall,
    SameMemory,
    StartTask,
    Step,
    TaskGroupStep,
    WaitFor,
    all_steps,
)


@dataclass(slots=True)
class Expectation:
    """Reasons that may keep one call from succeeding. With all defaults it must succeed on every rank."""

    mistaken: frozenset[int] = frozenset()  # ranks that pass invalid arguments
    freezing: frozenset[int] = frozenset()  # ranks that cannot store its result
    cancelling: set[int] = field(default_factory=set)  # ranks on which it may be cancelled, time out or be abandoned
    departed: frozenset[int] = frozenset()  # ranks that left before it
    unordered: bool = False  # another task makes calls at the same time, in unknown order
    uncounted: bool = False  # timing decides whether a rank makes it at all
    shares: bool = False  # it shares its tensor with another call that may be under way
    cut: frozenset[int] = frozenset()  # ranks cut short while leaving, which may have lost something unsent
    misconfigured: bool = False  # not all ranks plan it the same way

    @property
    def spoilers(self) -> frozenset[int]:
        """Ranks that may make it fail for all."""
        return self.mistaken | self.cancelling

    @property
    def is_certain(self) -> bool:
        """Whether it must succeed on every rank."""
        doubts = (
            self.freezing,
            self.departed,
            self.unordered,
            self.uncounted,
            self.shares,
            self.cut,
            self.misconfigured,
        )
        return not self.spoilers and not any(doubts)


def goes_astray(program: Program) -> bool:
    """Whether ranks may make different numbers of calls on a channel that they go on using."""
    return _walked(program).astray


def expectations_of(program: Program) -> dict[int, Expectation]:
    expectations = _walked(program)
    if expectations.astray:
        for expected in expectations.of.values():
            expected.unordered = expected.uncounted = True
    return expectations.of


def _walked(program: Program) -> "_Expectations":
    expectations = _Expectations(program)
    expectations.strand(program.steps, "", _Context())
    return expectations


@dataclass(frozen=True, slots=True)
class _Context:
    """Conditions of all calls of a task."""

    unordered: bool = False
    cancelled: bool = False


class _Expectations:
    """Expectations of all calls, collected while walking through the steps."""

    def __init__(self, program: Program) -> None:
        self.of: dict[int, Expectation] = {}
        self.astray = False  # see `goes_astray`
        self._all = frozenset(range(program.size))
        self._departed: frozenset[int] = frozenset()
        self._cut = frozenset(step.rank for step in program.steps if isinstance(step, Leave) and step.cut is not None)
        self._misconfigured = program.misconfigured is not None

    def strand(self, steps: Sequence[Step], channel: str, around: _Context) -> None:
        beside: set[int] = set()  # tasks that make calls on the same channel
        cancels: dict[int, set[int]] = {}  # ranks that cancel each task
        for step in steps:
            if isinstance(step, Cancel):
                cancels.setdefault(step.task, set()).update(step.after)
        for step in steps:
            match step:
                case Branch(task, inner, own):
                    if own == channel:
                        beside.add(task)
                        self.astray |= task in cancels
                    within = _Context(own == channel, around.cancelled or task in cancels)
                    self.strand(inner, own, within)
                case FinishTask(task):
                    beside.discard(task)
                case Leave(rank):
                    self._departed |= {rank}
                case _:
                    now = _Context(around.unordered or bool(beside), around.cancelled)
                    self._step(step, now, cancels)

    def _step(self, step: Step, around: _Context, cancels: Mapping[int, set[int]]) -> None:
        match step:
            case Await(call):
                self._note([call], around)
            case StartTask(task, call):
                self._note([call], around, cancels.get(task, ()))
            case Gather(calls):
                self._note(calls, around)
            case SameMemory(calls):
                self._note(calls, around)
                self.of[calls[1].index].shares = True
            case TaskGroupStep(calls, fails):
                self._note(calls, around, fails)
                if not all(self.of[call.index].is_certain for call in calls):  # the failure of one cancels the others
                    self._note(calls, around, self._all)
            case WaitFor(call, ranks) | Abandon(call, ranks):
                self._note([call], around, ranks)

    def _note(self, calls: Sequence[ProgramCall], around: _Context, cancelling: Iterable[int] = ()) -> None:
        for call in calls:
            self.of[call.index] = Expectation(
                mistaken=_ranks_with(call, frozen=False),
                freezing=_ranks_with(call, frozen=True),
                cancelling=set(self._all if around.cancelled else cancelling),
                departed=self._departed,
                unordered=around.unordered,
                uncounted=around.cancelled,
                cut=self._cut,
                misconfigured=self._misconfigured,
            )


def _ranks_with(call: ProgramCall, *, frozen: bool) -> frozenset[int]:
    return frozenset(rank for rank, mistake in call.mistakes.items() if (mistake is Mistake.FROZEN) is frozen)


# -- comparison

_CANCELLED = ("CancelledError", "TimeoutError")
_MISTAKEN = ("TypeError", "ValueError")
_STRAYING = ("CollectiveTimeout", "PeerLeft", "RingClosed")


def verdict(program: Program, journals: Sequence[RankJournal]) -> list[str]:
    """All problems of a program."""
    return list(_Verdict(program, journals).problems())


class _Verdict:
    """Comparison of one program with its journals."""

    def __init__(self, program: Program, journals: Sequence[RankJournal]) -> None:
        self._program, self._journals, self._expectations = program, journals, expectations_of(program)
        pairs = [step.calls for step in all_steps(program.steps) if isinstance(step, SameMemory)]
        self._second = {first.index: second for first, second in pairs}

    def problems(self) -> Iterator[str]:
        for rank, journal in enumerate(self._journals):
            yield from (f"rank {rank}: {complaint}" for complaint in journal.complaints)
            if not journal.through:
                yield f"rank {rank} never came to the end of the program"
        for call in self._program.calls():
            entries = [journal.entries.get(call.index) for journal in self._journals]
            for rank, entry in enumerate(entries):
                for problem in self._of_call(call, rank, entry, entries):
                    yield f"rank {rank}, {call}: {problem}"

    def _of_call(
        self, call: ProgramCall, rank: int, entry: JournalEntry | None, entries: Sequence[JournalEntry | None]
    ) -> Iterator[str]:
        expected = self._expectations[call.index]
        if entry is None:
            if rank not in expected.departed and not expected.uncounted and self._journals[rank].through:
                yield "it was never made"
        elif entry.ending is None:
            if rank not in expected.cancelling and self._journals[rank].through:
                yield "it never ended"
            yield from self._unchanged(call, rank, entry, entry.last)
        elif entry.ending.error:
            if not _explains(expected, rank, entry.ending):
                yield f"it ended with {entry.ending}"
            yield from self._unchanged(call, rank, entry, entry.after)
            yield from self._unchanged(call, rank, entry, entry.last)
        else:
            yield from self._exact(call, rank, entry, entries)

    def _exact(
        self, call: ProgramCall, rank: int, entry: JournalEntry, entries: Sequence[JournalEntry | None]
    ) -> Iterator[str]:
        expected = self._expectations[call.index]
        present = [one for one in entries if one is not None]
        if len(present) < len(entries) or expected.mistaken:
            yield "it succeeded, though not all took part"
            return
        if self._is_overwritten(call, rank):
            return
        brought = [one.brought for one in present]
        if not decides(call, rank):
            yield from self._alike(call, entry, present)
            return
        memory, result = expected_memory(call, rank, brought), expected_result(call, rank, brought)
        for held in (entry.after, entry.last):
            if not _same(held, memory):
                yield f"memory holds {_text(held)}, must be {_text(memory)}"
        if entry.ending is not None and result and not _same(entry.ending.result, _as_given(call, result)):
            yield f"it returned {_text(entry.ending.result)}, must be {_text(result)}"

    def _alike(self, call: ProgramCall, entry: JournalEntry, entries: Sequence[JournalEntry]) -> Iterator[str]:
        for rank, other in enumerate(entries):
            succeeded = other.ending is not None and not other.ending.error
            if succeeded and not decides(call, rank) and not _same(entry.after, other.after):
                yield f"it has {_text(entry.after)}, and rank {rank} {_text(other.after)}"

    def _unchanged(self, call: ProgramCall, rank: int, entry: JournalEntry, held: Sequence[Array]) -> Iterator[str]:
        mine = call not in self._second.values() and not self._is_overwritten(call, rank)
        if mine and not _same(held, entry.brought):
            yield f"it did not succeed, and memory holds {_text(held)}, not {_text(entry.brought)}"

    # -- two calls with one memory

    def _is_overwritten(self, call: ProgramCall, rank: int) -> bool:
        """Whether another call with the same memory has succeeded after it and overwritten its result."""
        second = self._second.get(call.index)
        entry = None if second is None else self._journals[rank].entries.get(second.index)
        return entry is not None and entry.ending is not None and not entry.ending.error


def _explains(expected: Expectation, rank: int, ending: CallEnding) -> bool:
    """Whether the program explains this error on this rank."""
    match ending.error:
        case error if error in _MISTAKEN:
            return rank in expected.mistaken or (error == "ValueError" and rank in expected.freezing)
        case error if error in _CANCELLED:
            return rank in expected.cancelling
        case "TensorInUse":
            return expected.shares
        case "CollectiveAborted":
            return ending.rank in expected.spoilers or expected.shares or expected.unordered
        case "CollectiveMismatch":
            return expected.unordered or expected.misconfigured
        case "PeerLost":
            return bool(expected.cut)
        case "PeerLeft" if not expected.uncounted:
            return bool(expected.departed)  # a rank with that error leaves too, and others may learn of it first
        case error if error in _STRAYING:
            return expected.uncounted
    return False


def _as_given(call: ProgramCall, result: Sequence[Array]) -> list[Array]:
    return [np.concatenate(result)] if call.into else [*result]


def _same(ours: Sequence[Array], theirs: Sequence[Array]) -> bool:
    return len(ours) == len(theirs) and all(map(_identical, ours, theirs))


def _identical(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _text(arrays: Sequence[Array]) -> str:
    return ", ".join(f"{array.ravel()[:4]}" for array in arrays)
