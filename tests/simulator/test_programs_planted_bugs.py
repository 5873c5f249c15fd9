"""Sensitivity of programs: bugs planted in the call boundary are found, each within a few hundred seeds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from ringwide.collectives.dispatcher import Dispatcher
from ringwide.collectives.peer_loss import Leaving, PeerLoss
from ringwide.collectives.plan import Plan, Planner, Request
from ringwide.ring import Ring
from ringwide.runtime.call import Call
from ringwide.runtime.call_queue import CallQueue
from ringwide.simulator.programs.drawing import program_of
from ringwide.simulator.programs.program import Abandon, Overlap, Pause, Program, SameMemory, StartTask, all_steps
from ringwide.simulator.programs.verdict import Expectation, expectations_of
from ringwide.simulator.programs.world import run_program
from ringwide.tensors.memory_claims import MemoryClaims

pytestmark = pytest.mark.timeout(600)  # much is computed

MOST_SEEDS = 6000
COLLECTIVES = ("allreduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "barrier")

Plant = Callable[[pytest.MonkeyPatch], None]
Likely = Callable[[Program], bool]


def found(likely: Likely) -> str:
    """The first problem of a program that is likely to show one."""
    for seed in range(MOST_SEEDS):
        if likely(program_of(seed)) and (problems := run_program(seed).problems):
            return problems[0]
    return ""


# The bugs


def take_the_number_at_the_first_turn(plant: pytest.MonkeyPatch) -> None:
    def late(method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(self: Ring, *given: Any, **named: Any) -> Any:
            return await method(self, *given, **named)

        return call

    for name in COLLECTIVES:
        plant.setattr(Ring, name, late(getattr(Ring, name)))


def validate_before_the_number(plant: pytest.MonkeyPatch) -> None:
    make = CallQueue.make

    def make_if_valid(self: CallQueue, prepare: Callable[[bool], Any], channel: str = "") -> Any:
        try:
            prepared = prepare(bool(channel))
        except Exception as error:
            return failing(error)
        return make(self, lambda _: prepared, channel)

    plant.setattr(CallQueue, "make", make_if_valid)


async def failing(error: Exception) -> None:
    raise error


def forget_who_calls(plant: pytest.MonkeyPatch) -> None:
    plant.setattr("ringwide.runtime.call_queue.MASK", 0)


def refuse_in_silence(plant: pytest.MonkeyPatch) -> None:
    """Who gives up before its turn does not tell the others."""
    skip = Dispatcher.skip

    def skip_quietly(self: Dispatcher, *given: Any) -> int:
        with pytest.MonkeyPatch.context() as quiet:
            quiet.setattr(self, "_tell_all", lambda frame: None)
            return skip(self, *given)

    plant.setattr(Dispatcher, "skip", skip_quietly)


def let_two_calls_have_one_memory(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(MemoryClaims, "open", lambda self, occupant: True)


def let_tensors_of_a_call_overlap(plant: pytest.MonkeyPatch) -> None:
    plant.setattr("ringwide.tensors.packing.overlap_within", lambda arrays: False)


def go_on_with_what_was_closed(plant: pytest.MonkeyPatch) -> None:
    def close(self: Call[Any]) -> None:
        self._under_way = None

    plant.setattr(Call, "close", close)


def keep_the_result_of_a_cancelled_call(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(CallQueue, "_undo", lambda self, entry: None)


def leave_the_plan_out_of_the_fingerprint(plant: pytest.MonkeyPatch) -> None:
    plan = Planner.plan

    def plan_as_asked(self: Planner, request: Request, **given: Any) -> Plan:
        return replace(plan(self, request, **given), fingerprint=crc32(repr(request).encode()))

    plant.setattr(Planner, "plan", plan_as_asked)


def hang_up_right_after_the_goodbye(plant: pytest.MonkeyPatch) -> None:
    begin = Leaving.begin

    def begin_and_end(self: Leaving, lost: Any) -> None:
        begin(self, lost)
        self.cut_short()

    plant.setattr(Leaving, "begin", begin_and_end)


def take_any_end_for_a_clean_one(plant: pytest.MonkeyPatch) -> None:
    give_up_on = PeerLoss.give_up_on

    def believe(self: PeerLoss, peer: int, reason: Exception) -> None:
        if peer not in self._departed:
            give_up_on(self, peer, reason)

    plant.setattr(PeerLoss, "give_up_on", believe)


# Where they are likely to show


def any_call(condition: Callable[[Expectation], bool]) -> Likely:
    return lambda program: any(map(condition, expectations_of(program).values()))


def any_step(*kinds: type) -> Likely:
    return lambda program: any(isinstance(step, kinds) for step in all_steps(program.steps))


def overlapping(program: Program) -> bool:
    return any(call.overlap is Overlap.RETYPED for call in program.calls())


BUGS: list[tuple[Plant, Likely]] = [
    (take_the_number_at_the_first_turn, any_step(StartTask)),
    (validate_before_the_number, any_call(lambda expected: bool(expected.mistaken))),
    (forget_who_calls, any_call(lambda expected: expected.unordered)),
    (refuse_in_silence, any_call(lambda expected: bool(expected.mistaken))),
    (leave_the_plan_out_of_the_fingerprint, lambda program: program.misconfigured is not None),
    (let_two_calls_have_one_memory, any_step(SameMemory)),
    (let_tensors_of_a_call_overlap, overlapping),
    (go_on_with_what_was_closed, any_step(Abandon)),
    (hang_up_right_after_the_goodbye, any_step(Pause)),
    (take_any_end_for_a_clean_one, any_call(lambda expected: bool(expected.cut))),
    (keep_the_result_of_a_cancelled_call, any_call(lambda expected: bool(expected.cancelling))),
]


@pytest.mark.parametrize(("bug", "likely"), [pytest.param(*case, id=case[0].__name__) for case in BUGS])
def test_a_planted_bug_is_found(bug: Plant, likely: Likely, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert found(likely), "no program has noticed"
