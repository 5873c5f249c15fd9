"""Program of a user: calls, and the steps in which they are made. It is data, the same on every rank.

Differences between ranks are part of it: who makes a mistake, who cancels and when, who is slow, who leaves early.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ringwide.collectives.plan import CollectiveKind


class Form(Enum):
    """Form in which tensors are passed."""

    ONE = "one"
    LIST = "list"
    MAPPING = "mapping"


class Overlap(Enum):
    """Overlap in memory between the tensors of one call."""

    NONE = ""
    TWICE = "the same twice"
    SHIFTED = "two views that overlap"
    RETYPED = "a view as another dtype"


class Mistake(Enum):
    """Mistake of one rank in a call."""

    READ_ONLY = "read-only"
    DTYPE = "complex64"
    NOTHING = "None"
    OP = "op='median'"
    ROOT = "root=99"
    INTO = "into is too large"
    FROZEN = "read-only as soon as it is called"  # noticed when the result arrives, by this rank only


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """Collective that all ranks call, and the mistakes that some of them make in it."""

    index: int
    kind: CollectiveKind
    op: str
    tensors: tuple[tuple[str, int], ...]  # dtype and number of elements of each
    form: Form
    overlap: Overlap
    root: int
    into: bool
    channel: str
    mistakes: Mapping[int, Mistake] = field(default_factory=dict)

    def __str__(self) -> str:
        tensors = ", ".join(f"{dtype}[{count}]" for dtype, count in self.tensors)
        details = [tensors if self.form is Form.ONE else f"{self.form.value} of {tensors}", self.overlap.value]
        details += [self.op, f"root {self.root}" if self.kind in ROOTED else "", "into" if self.into else ""]
        details += [f"channel {self.channel!r}" if self.channel else ""]
        details += [f"rank {rank}: {mistake.value}!" for rank, mistake in self.mistakes.items()]
        given = "" if self.kind is CollectiveKind.BARRIER else ", ".join(filter(None, details))
        return f"{self.kind.value}#{self.index}({given})"


ROOTED = (CollectiveKind.REDUCE, CollectiveKind.BROADCAST)
Ranks = frozenset[int]


def writes(call: ProgramCall, rank: int) -> bool:
    """Whether the result is written to this rank's tensor."""
    match call.kind:
        case CollectiveKind.ALLREDUCE:
            return True
        case CollectiveKind.REDUCE:
            return rank == call.root
        case CollectiveKind.BROADCAST:
            return rank != call.root
    return False


@dataclass(frozen=True, slots=True)
class Await:
    """Await a call."""

    call: ProgramCall

    def __str__(self) -> str:
        return f"await {self.call}"


@dataclass(frozen=True, slots=True)
class StartTask:
    """Make a call in a task."""

    task: int
    call: ProgramCall

    def __str__(self) -> str:
        return f"t{self.task} = create_task({self.call})"


@dataclass(frozen=True, slots=True)
class Branch:
    """Task with steps of its own, whose calls are made when it has its turns."""

    task: int
    steps: "tuple[Step, ...]"
    channel: str  # of all its calls; if it is that of the outer task, the order of the two is unknown

    def __str__(self) -> str:
        body = "\n".join(f"    {line}" for step in self.steps for line in str(step).splitlines())
        name = f"branch{self.task}"
        return f"async def {name}():  # channel {self.channel!r}\n{body}\nt{self.task} = create_task({name}())"


@dataclass(frozen=True, slots=True)
class Cancel:
    """Some ranks cancel a task, each after some turns of its loop; after 0 turns the task has not begun."""

    task: int
    after: Mapping[int, int]  # turns, by rank

    def __str__(self) -> str:
        when = ", ".join(f"rank {rank} after {turns} turns" for rank, turns in self.after.items())
        return f"t{self.task}.cancel()  # {when}"


@dataclass(frozen=True, slots=True)
class FinishTask:
    """Await a task."""

    task: int

    def __str__(self) -> str:
        return f"await t{self.task}"


@dataclass(frozen=True, slots=True)
class Gather:
    """Gather several calls."""

    calls: tuple[ProgramCall, ...]

    def __str__(self) -> str:
        return f"await gather({', '.join(map(str, self.calls))})"


@dataclass(frozen=True, slots=True)
class SameMemory:
    """Gather two calls with the same tensor."""

    calls: tuple[ProgramCall, ProgramCall]

    def __str__(self) -> str:
        return f"await gather({self.calls[0]}, {self.calls[1]} with the same memory)"


@dataclass(frozen=True, slots=True)
class TaskGroupStep:
    """Task group with calls, and on some ranks a sibling that fails after some turns of the loop."""

    calls: tuple[ProgramCall, ...]
    fails: Mapping[int, int]  # turns, by rank

    def __str__(self) -> str:
        failing = "".join(f", and fails on rank {rank} after {turns} turns" for rank, turns in self.fails.items())
        return f"async with TaskGroup(): {', '.join(map(str, self.calls))}{failing}"


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Some ranks await a call with a timeout."""

    call: ProgramCall
    seconds: Mapping[int, float]  # by rank

    def __str__(self) -> str:
        limits = ", ".join(f"{seconds:g} s on rank {rank}" for rank, seconds in self.seconds.items())
        return f"await wait_for({self.call}, {limits})"


class AbandonKind(Enum):
    """Way in which a call is abandoned."""

    CLOSED = "closed"  # before it was awaited
    DROPPED = "dropped"
    BEGUN = "awaited for a moment, then closed"


@dataclass(frozen=True, slots=True)
class Abandon:
    """Some ranks make a call and do not await it to its end."""

    call: ProgramCall
    ways: Mapping[int, AbandonKind]

    def __str__(self) -> str:
        ways = ", ".join(f"{way.value} on rank {rank}" for rank, way in self.ways.items())
        return f"await {self.call}  # {ways}"


@dataclass(frozen=True, slots=True)
class Pause:
    """One rank is slow: it sleeps, or it computes and blocks its loop."""

    rank: int
    seconds: float
    computes: bool

    def __str__(self) -> str:
        return f"{'compute' if self.computes else 'await sleep'}({self.seconds:g})  # rank {self.rank}"


@dataclass(frozen=True, slots=True)
class Leave:
    """One rank leaves the ring here, and may be cut short while leaving. The others continue."""

    rank: int
    cut: int | None = None  # after this many turns of its loop

    def __str__(self) -> str:
        return f"return  # rank {self.rank}" + ("" if self.cut is None else f", cut short after {self.cut} turns")


Step = (
    Await
    | StartTask
    | Branch
    | Cancel
    | FinishTask
    | Gather
    | SameMemory
    | TaskGroupStep
    | WaitFor
    | Abandon
    | Pause
    | Leave
)


@dataclass(frozen=True, slots=True)
class Program:
    """Steps of every rank."""

    seed: int
    size: int
    steps: tuple[Step, ...]
    misconfigured: int | None = None  # a rank that plans its calls differently

    def __str__(self) -> str:
        plans = [] if self.misconfigured is None else [f"# rank {self.misconfigured} plans differently"]
        return "\n".join([*plans, *map(str, self.steps)])

    def cut_of(self, rank: int) -> int | None:
        """Number of turns after which this rank is cut short while leaving, or None."""
        return next((step.cut for step in self.steps if isinstance(step, Leave) and step.rank == rank), None)

    def calls(self) -> Iterator[ProgramCall]:
        for step in all_steps(self.steps):
            match step:
                case Await(call) | StartTask(_, call) | WaitFor(call, _) | Abandon(call, _):
                    yield call
                case Gather(calls) | SameMemory(calls) | TaskGroupStep(calls, _):
                    yield from calls


def all_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Steps, including those of all branches."""
    for step in steps:
        yield step
        if isinstance(step, Branch):
            yield from all_steps(step.steps)
