"""Drawing of random programs: one seed is one program."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from ringwide.collectives.plan import CollectiveKind
from ringwide.simulator.programs.program import (
    ROOTED,
    Abandon,
    AbandonKind,
    Await,
    Branch,
    Cancel,
    FinishTask,
    Form,
    Gather,
    Leave,
    Mistake,
    Overlap,
    Pause,
    Program,
    ProgramCall,
    SameMemory,
    StartTask,
    Step,
    TaskGroupStep,
    WaitFor,
    writes,
)

_SIZES = (*[2] * 14, *[3] * 5, 4)
_KINDS = (
    *[CollectiveKind.ALLREDUCE] * 8,
    CollectiveKind.REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.BROADCAST,
    CollectiveKind.ALL_GATHER,
)
_KINDS += (CollectiveKind.REDUCE_SCATTER, CollectiveKind.BARRIER)
_COUNTS = (1, 1, 3, 3, 3, 8, 20)
"""Few different counts, so that shapes repeat; the last one is sent as bulk."""
_OPS = ("sum", "sum", "mean", "min", "max")
_FORMS = (Form.ONE, Form.ONE, Form.ONE, Form.LIST, Form.MAPPING)
_FLOATS = ("float64", "float32")
_INTEGERS = ("int64", "int32")
_PAUSES = (0.0, 0.003, 0.03, 2.0)
_CALM, _LEAVES, _MISTAKEN, _OWN_CHANNEL, _OVERLAPPING = 0.35, 0.15, 0.12, 0.5, 0.3
_CUT, _MISCONFIGURED = 0.3, 0.04
_MOST_TURNS = 7
_DEEPEST = 2


def program_of(seed: int) -> Program:
    """Program drawn from a seed."""
    rng = Random(seed)
    size = rng.choice(_SIZES)
    steps = _Drawing(rng, size, f"{seed}.").steps()
    misconfigured = rng.randrange(size) if size < 4 and rng.random() < _MISCONFIGURED else None
    return Program(seed, size, steps, misconfigured)


class _Drawing:
    """Draws steps. In a calm program nothing keeps a call from succeeding, but ranks are often late."""

    def __init__(self, rng: Random, size: int, prefix: str) -> None:
        self._rng, self._size = rng, size
        self._prefix = prefix  # of channel names: one ring may run many programs
        self._calm = rng.random() < _CALM
        self._calls = self._tasks = 0

    def steps(self) -> tuple[Step, ...]:
        steps = self._strand("", 0)
        if self._rng.random() < _LEAVES:
            cut = self._turns() if not self._calm and self._rng.random() < _CUT else None
            steps += [Leave(self._rank(), cut), *self._strand("", _DEEPEST)]
        return tuple(steps)

    def _strand(self, channel: str, depth: int) -> list[Step]:
        """Steps of one task, which awaits all tasks that it starts."""
        steps: list[Step] = []
        open_: list[StartTask | Branch] = []
        for _ in range(self._rng.randint(1, 3 if depth else 4)):
            step = self._step(channel, depth, open_)
            steps.append(step)
            if isinstance(step, StartTask | Branch):
                open_.append(step)
            if isinstance(step, FinishTask):
                open_ = [one for one in open_ if one.task != step.task]
        self._rng.shuffle(open_)
        return [*steps, *(FinishTask(one.task) for one in open_)]

    def _step(self, channel: str, depth: int, open_: Sequence[StartTask | Branch]) -> Step:
        ways: list[Callable[[], Step]] = [
            *[lambda: Await(self._call(channel))] * 4,
            *[lambda: StartTask(self._task(), self._call(channel))] * 3,
            *[lambda: Gather(self._some(channel))] * 2,
            lambda: self._group(channel),
            lambda: Pause(self._rank(), self._rng.choice(_PAUSES), self._rng.random() < 0.4),
        ]
        if depth < _DEEPEST:
            ways += [lambda: self._branch(channel, depth)] * 2
        if open_:
            ways += [lambda: FinishTask(self._rng.choice(open_).task)] * 2
        if not self._calm:
            ways += [
                lambda: self._same_memory(channel),
                lambda: self._wait_for(channel),
                lambda: self._abandon(channel),
            ]
            if open_:
                ways += [lambda: self._cancel(self._rng.choice(open_))] * 3
        return self._rng.choice(ways)()

    # -- steps

    def _group(self, channel: str) -> TaskGroupStep:
        fails = {} if self._calm else {rank: self._turns() for rank in self._few()}
        return TaskGroupStep(self._some(channel), fails)

    def _wait_for(self, channel: str) -> WaitFor:
        limits = (0.0, 0.0, 0.001, 0.01)
        return WaitFor(self._call(channel), {rank: self._rng.choice(limits) for rank in self._few()})

    def _abandon(self, channel: str) -> Abandon:
        return Abandon(self._call(channel), {rank: self._rng.choice(list(AbandonKind)) for rank in self._few()})

    def _same_memory(self, channel: str) -> SameMemory:
        dtype, count = self._tensor("sum")
        first, second = (
            ProgramCall(
                self._number(),
                CollectiveKind.ALLREDUCE,
                "sum",
                ((dtype, count),),
                Form.ONE,
                Overlap.NONE,
                0,
                False,
                channel,
            )
            for _ in range(2)
        )
        return SameMemory((first, second))

    def _branch(self, channel: str, depth: int) -> Branch:
        task = self._task()
        name = f"{self._prefix}{task}" if self._rng.random() < _OWN_CHANNEL else channel
        return Branch(task, tuple(self._strand(name, depth + 1)), name)

    def _cancel(self, target: StartTask | Branch) -> Cancel:
        """Cancel a task. All ranks cancel a branch: one that went on would wait for the calls of the others."""
        ranks = range(self._size) if isinstance(target, Branch) else self._few()
        return Cancel(target.task, {rank: self._turns() for rank in ranks})

    # -- calls

    def _some(self, channel: str) -> tuple[ProgramCall, ...]:
        return tuple(self._call(channel) for _ in range(self._rng.randint(2, 3)))

    def _call(self, channel: str) -> ProgramCall:
        call = self._sound_call(channel)
        if self._calm or call.kind is CollectiveKind.BARRIER or self._rng.random() > _MISTAKEN:
            return call
        return replace(call, mistakes={rank: self._rng.choice(_mistakes_in(call, rank)) for rank in self._few()})

    def _sound_call(self, channel: str) -> ProgramCall:
        rng = self._rng
        kind = rng.choice(_KINDS)
        op = rng.choice(_OPS) if kind in REDUCING else ""
        single = kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
        form = Form.ONE if single else rng.choice(_FORMS)
        overlap = Overlap.NONE if form is Form.ONE or rng.random() > _OVERLAPPING else self._overlap(op)
        several = form is not Form.ONE and overlap is Overlap.NONE
        tensors = tuple(self._tensor(op) for _ in range(rng.randint(1, 3) if several else 1))
        return ProgramCall(
            index=self._number(),
            kind=kind,
            op=op,
            tensors=() if kind is CollectiveKind.BARRIER else tensors,
            form=form,
            overlap=overlap,
            root=rng.randrange(self._size) if kind in ROOTED else 0,
            into=single and rng.random() < 0.5,
            channel=channel,
        )

    def _overlap(self, op: str) -> Overlap:
        overlaps = [Overlap.TWICE, Overlap.SHIFTED]
        if op != "mean":  # not defined for integers
            overlaps.append(Overlap.RETYPED)
        return self._rng.choice(overlaps)

    def _tensor(self, op: str) -> tuple[str, int]:
        return self._rng.choice(_FLOATS if op == "mean" else _FLOATS + _INTEGERS), self._rng.choice(_COUNTS)

    # -- numbers, ranks and turns

    def _number(self) -> int:
        self._calls += 1
        return self._calls - 1

    def _task(self) -> int:
        self._tasks += 1
        return self._tasks - 1

    def _rank(self) -> int:
        return self._rng.randrange(self._size)

    def _few(self) -> list[int]:
        """Ranks: mostly one, sometimes several or all."""
        count = self._rng.choice((1, 1, 1, self._size, self._rng.randint(1, self._size)))
        return sorted(self._rng.sample(range(self._size), count))

    def _turns(self) -> int:
        return int(_MOST_TURNS * self._rng.random() ** 2)


REDUCING = (CollectiveKind.ALLREDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)


def _mistakes_in(call: ProgramCall, rank: int) -> list[Mistake]:
    mistakes = [Mistake.DTYPE, Mistake.NOTHING]
    if call.kind in REDUCING:
        mistakes.append(Mistake.OP)
    if call.kind in ROOTED:
        mistakes.append(Mistake.ROOT)
    if call.into:
        mistakes.append(Mistake.INTO)
    if writes(call, rank):
        mistakes += [Mistake.READ_ONLY, Mistake.FROZEN]
    return mistakes
