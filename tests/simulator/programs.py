"""Programs that were wrong once, each the shortest of its kind, and calls to write them with."""

from collections.abc import Callable
from itertools import count

from ringwide.collectives.plan import CollectiveKind
from ringwide.simulator.programs.program import (
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
)


class Script:
    """Makes the calls of one program: each has the next index."""

    def __init__(self) -> None:
        self._numbers = count()

    def allreduce(self, *tensors: tuple[str, int], channel: str = "", **mistakes: Mistake) -> ProgramCall:
        """Of one small array unless others are named. `rank0=Mistake...` says who gets it wrong."""
        return self.call(CollectiveKind.ALLREDUCE, *tensors, op="sum", channel=channel, **mistakes)  # type: ignore[arg-type]

    def broadcast(self, *tensors: tuple[str, int], root: int = 0, **mistakes: Mistake) -> ProgramCall:
        return self.call(CollectiveKind.BROADCAST, *tensors, root=root, **mistakes)  # type: ignore[arg-type]

    def call(
        self,
        kind: CollectiveKind,
        *tensors: tuple[str, int],
        op: str = "",
        root: int = 0,
        into: bool = False,
        channel: str = "",
        overlap: Overlap = Overlap.NONE,
        **mistakes: Mistake,
    ) -> ProgramCall:
        form = Form.LIST if len(tensors) > 1 or overlap is not Overlap.NONE else Form.ONE
        wrong = {int(rank.removeprefix("rank")): mistake for rank, mistake in mistakes.items()}
        given = tensors or (("float64", 3),)
        return ProgramCall(next(self._numbers), kind, op, given, form, overlap, root, into, channel, wrong)


Case = Callable[[Script], list[Step]]


def a_task_beside_two_awaits(s: Script) -> list[Step]:
    return [StartTask(0, s.allreduce()), Await(s.allreduce()), Await(s.allreduce()), FinishTask(0)]


def cancelled_before_its_first_turn(s: Script) -> list[Step]:
    return [StartTask(0, s.allreduce()), Cancel(0, {0: 0}), FinishTask(0), Await(s.allreduce()), Await(s.allreduce())]


def a_sibling_that_fails_at_once(s: Script) -> list[Step]:
    return [TaskGroupStep((s.allreduce(), s.allreduce()), {0: 0}), Await(s.allreduce()), Await(s.allreduce())]


def no_time_to_wait(s: Script) -> list[Step]:
    return [WaitFor(s.allreduce(), {0: 0.0}), Await(s.allreduce()), Await(s.allreduce())]


def two_tasks_that_loop(s: Script) -> list[Step]:
    loops = [Branch(task, tuple(Await(s.allreduce()) for _ in range(3)), "") for task in range(2)]
    return [*loops, FinishTask(0), FinishTask(1), Await(s.allreduce())]


def two_tasks_that_loop_on_channels(s: Script) -> list[Step]:
    loops = [
        Branch(task, tuple(Await(s.allreduce(channel=channel)) for _ in range(3)), channel)
        for task, channel in enumerate(("left", "right"))
    ]
    return [*loops, Await(s.allreduce()), FinishTask(0), FinishTask(1)]


def a_read_only_array(s: Script) -> list[Step]:
    return [Await(s.allreduce(rank0=Mistake.READ_ONLY)), Await(s.allreduce()), Await(s.allreduce())]


def a_bad_root(s: Script) -> list[Step]:
    return [Await(s.broadcast(rank1=Mistake.ROOT)), Await(s.broadcast(root=1)), Await(s.broadcast())]


def a_bad_op(s: Script) -> list[Step]:
    return [Await(s.allreduce(rank1=Mistake.OP)), Await(s.allreduce()), Await(s.allreduce())]


def no_room_for_the_result(s: Script) -> list[Step]:
    gathers = [
        s.call(CollectiveKind.ALL_GATHER, ("int64", 3), into=True, rank0=Mistake.INTO),
        s.call(CollectiveKind.ALL_GATHER),
    ]
    return [Gather((gathers[0], gathers[1])), Await(s.allreduce())]


def one_array_as_two_dtypes(s: Script) -> list[Step]:
    return [Await(s.call(CollectiveKind.ALLREDUCE, ("float32", 8), op="sum", overlap=Overlap.RETYPED))]


def one_array_in_two_calls(s: Script) -> list[Step]:
    return [SameMemory((s.allreduce(("int64", 1)), s.allreduce(("int64", 1)))), Await(s.allreduce())]


def closed_and_never_awaited(s: Script) -> list[Step]:
    return [Abandon(s.allreduce(), {0: AbandonKind.CLOSED}), Await(s.allreduce())]


def dropped_and_never_awaited(s: Script) -> list[Step]:
    return [Abandon(s.allreduce(), {0: AbandonKind.DROPPED}), Await(s.allreduce())]


def closed_while_it_is_awaited(s: Script) -> list[Step]:
    return [Abandon(s.allreduce(("float64", 20)), {0: AbandonKind.BEGUN}), Await(s.allreduce())]


def sent_by_one_that_has_left(s: Script) -> list[Step]:
    """Rank 1 has made its calls and computes: what it is sent waits."""
    sent = [StartTask(task, s.broadcast()) for task in range(8)]
    slow = [Pause(1, 0.03, computes=False), Pause(1, 2.0, computes=True)]
    return [*sent, *slow, *(FinishTask(task) for task in range(8)), Leave(0), Await(s.allreduce())]


def an_empty_segment_on_a_channel(s: Script) -> list[Step]:
    """Bulk without a payload waits on no lane, and may overtake the words that all have called it."""
    scattered = [
        Await(s.call(CollectiveKind.REDUCE_SCATTER, ("float64", 1), op="sum", channel="own")) for _ in range(3)
    ]
    return [Branch(0, tuple(scattered), "own"), Await(s.allreduce()), FinishTask(0)]


CASES: list[Case] = [
    a_task_beside_two_awaits,
    cancelled_before_its_first_turn,
    a_sibling_that_fails_at_once,
    no_time_to_wait,
    two_tasks_that_loop,
    two_tasks_that_loop_on_channels,
    a_read_only_array,
    a_bad_root,
    a_bad_op,
    no_room_for_the_result,
    one_array_as_two_dtypes,
    one_array_in_two_calls,
    closed_and_never_awaited,
    dropped_and_never_awaited,
    closed_while_it_is_awaited,
    sent_by_one_that_has_left,
    an_empty_segment_on_a_channel,
]


def program_of_case(case: Case, size: int = 2) -> Program:
    return Program(0, size, tuple(case(Script())))
