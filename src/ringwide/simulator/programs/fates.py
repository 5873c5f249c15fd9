"""What may keep each call of a program from succeeding, as far as the program itself says."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ringwide.simulator.programs.program import (
    Await,
    Branch,
    Call,
    Cancel,
    Finish,
    Gather,
    Group,
    Hurry,
    Leave,
    LetGo,
    Mistake,
    Program,
    SameMemory,
    Start,
    Step,
)


@dataclass(slots=True)
class Fate:
    """Of one call. One of which nothing is said here must succeed on every rank."""

    mistaken: frozenset[int] = frozenset()  # ranks that call it with something impossible
    freezing: frozenset[int] = frozenset()  # ranks that cannot take its result
    cancelling: set[int] = field(default_factory=set)  # ranks on which it may be cancelled, time out or be let go
    departed: frozenset[int] = frozenset()  # ranks that have left before
    unordered: bool = False  # another task makes calls at the same time, and nobody knows which comes first
    uncounted: bool = False  # whether a rank makes it at all is a matter of time
    shares: bool = False  # its tensor is that of another call, which may still be under way
    cut: frozenset[int] = frozenset()  # ranks that were cut short in leaving, and may have taken something along
    crooked: bool = False  # not all ranks plan it alike

    @property
    def spoilers(self) -> frozenset[int]:
        """Ranks that may end it for all."""
        return self.mistaken | self.cancelling

    @property
    def is_certain(self) -> bool:
        """It must succeed on every rank."""
        doubts = (self.freezing, self.departed, self.unordered, self.uncounted, self.shares, self.cut, self.crooked)
        return not self.spoilers and not any(doubts)


def goes_astray(program: Program) -> bool:
    """May ranks make different numbers of calls on a channel that they go on using?"""
    return _walked(program).astray


def fates_of(program: Program) -> dict[int, Fate]:
    fates = _walked(program)
    if fates.astray:
        for fate in fates.of.values():
            fate.unordered = fate.uncounted = True
    return fates.of


def _walked(program: Program) -> "_Fates":
    fates = _Fates(program)
    fates.strand(program.steps, "", _Around())
    return fates


@dataclass(frozen=True, slots=True)
class _Around:
    """What is true of all calls of a task."""

    unordered: bool = False
    cancelled: bool = False


class _Fates:
    """Of all calls, as the steps are gone through."""

    def __init__(self, program: Program) -> None:
        self.of: dict[int, Fate] = {}
        self.astray = False  # ranks may make different numbers of calls on one channel, and so wait for each other
        self._all = frozenset(range(program.size))
        self._departed: frozenset[int] = frozenset()
        self._cut = frozenset(step.rank for step in program.steps if isinstance(step, Leave) and step.cut is not None)
        self._crooked = program.crooked is not None

    def strand(self, steps: Sequence[Step], channel: str, around: _Around) -> None:
        beside: set[int] = set()  # tasks that make calls on the same channel
        cancels: dict[int, set[int]] = {}  # who cancels which task
        for step in steps:
            if isinstance(step, Cancel):
                cancels.setdefault(step.task, set()).update(step.after)
        for step in steps:
            match step:
                case Branch(task, inner, own):
                    if own == channel:
                        beside.add(task)
                        self.astray |= task in cancels
                    within = _Around(own == channel, around.cancelled or task in cancels)
                    self.strand(inner, own, within)
                case Finish(task):
                    beside.discard(task)
                case Leave(rank):
                    self._departed |= {rank}
                case _:
                    now = _Around(around.unordered or bool(beside), around.cancelled)
                    self._step(step, now, cancels)

    def _step(self, step: Step, around: _Around, cancels: Mapping[int, set[int]]) -> None:
        match step:
            case Await(call):
                self._note([call], around)
            case Start(task, call):
                self._note([call], around, cancels.get(task, ()))
            case Gather(calls):
                self._note(calls, around)
            case SameMemory(calls):
                self._note(calls, around)
                self.of[calls[1].index].shares = True
            case Group(calls, fails):
                self._note(calls, around, fails)
                if not all(self.of[call.index].is_certain for call in calls):  # the end of one cancels the others
                    self._note(calls, around, self._all)
            case Hurry(call, ranks) | LetGo(call, ranks):
                self._note([call], around, ranks)

    def _note(self, calls: Sequence[Call], around: _Around, cancelling: Iterable[int] = ()) -> None:
        for call in calls:
            self.of[call.index] = Fate(
                mistaken=_ranks_with(call, frozen=False),
                freezing=_ranks_with(call, frozen=True),
                cancelling=set(self._all if around.cancelled else cancelling),
                departed=self._departed,
                unordered=around.unordered,
                uncounted=around.cancelled,
                cut=self._cut,
                crooked=self._crooked,
            )


def _ranks_with(call: Call, *, frozen: bool) -> frozenset[int]:
    return frozenset(rank for rank, mistake in call.mistakes.items() if (mistake is Mistake.FROZEN) is frozen)
