"""What a group is asked for beside operations: its backend, timeout, number of calls, and the monitored barrier."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch_backend.two_threads import in_both, outcomes, require_right_sums
from torch._C._distributed_c10d import Backend

import ringwide
from ringwide.torch.process_group import RingProcessGroup
from ringwide.torch.work import RingWork

CPU = torch.device("cpu")
SHORT = timedelta(milliseconds=300)
ENOUGH = timedelta(seconds=60)


def test_the_backend_of_the_cpu_is_the_group_itself(groups: list[RingProcessGroup]) -> None:
    group = groups[1]
    backend: Any = group._get_backend(CPU)
    assert (backend.rank(), backend.size(), backend.name()) == (1, 2, "ringwide")
    assert backend == group._get_backend(CPU)
    assert len({backend, group._get_backend(CPU), groups[0]._get_backend(CPU)}) == 2
    for ability in ("splitting", "coalescing", "shrinking", "time_estimate"):
        assert getattr(backend, f"supports_{ability}") is False
    assert backend.supports_tensor_alloc(CPU) is False
    assert outcomes(groups, lambda one: one._get_backend(CPU).allreduce([torch.ones(2)])) == [None, None]
    with pytest.raises(AttributeError, match="comm_split_count"):
        backend.comm_split_count()


def test_there_is_no_backend_of_another_device(groups: list[RingProcessGroup]) -> None:
    with pytest.raises(RuntimeError, match="for CPU tensors; it has no backend for the device cuda:1"):
        groups[0]._get_backend(torch.device("cuda:1"))


def test_options_say_what_holds_now(groups: list[RingProcessGroup]) -> None:
    backend: Any = groups[0]._get_backend(CPU)
    groups[0]._set_group_name("7")
    options = backend.options
    assert isinstance(options, Backend.Options)
    assert (options.backend, options._timeout) == ("ringwide", groups[0].timeout)
    assert (options.group_name, options.global_ranks_in_group) == ("7", [0, 1])
    backend._set_default_timeout(ENOUGH)
    assert backend.options._timeout == groups[0].timeout == ENOUGH


@pytest.mark.filterwarnings("error")  # torch warns where it cannot set one
def test_a_timeout_that_is_set_is_the_deadline_of_operations(groups: list[RingProcessGroup]) -> None:
    dist.distributed_c10d._set_pg_timeout(SHORT, groups[0])
    assert groups[0].timeout == SHORT
    with pytest.raises(ringwide.CollectiveTimeout, match=r"Timed out after no progress for 0\.3 s"):
        groups[0].barrier().wait()
    with pytest.raises(ringwide.CollectiveTimeout, match=r"Timed out after no progress for 0\.3 s"):
        groups[0].recv([torch.ones(1)], 1, 0).wait()


def test_a_timeout_of_nothing_is_refused(groups: list[RingProcessGroup]) -> None:
    before = groups[0].timeout
    with pytest.raises(ValueError, match="more than 0"):
        groups[0].set_timeout(timedelta(0))
    assert groups[0].timeout == before


def test_collectives_are_counted(groups: list[RingProcessGroup]) -> None:
    before = [group._get_sequence_number_for_group() for group in groups]
    for group in groups:
        group._set_sequence_number_for_group()
    assert outcomes(groups, lambda group: group.barrier()) == [None, None]
    assert [group._get_sequence_number_for_group() for group in groups] == [count + 1 for count in before]


@pytest.mark.parametrize("method", ["split_group", "merge_remote_group", "_register_on_completion_hook"])
def test_what_it_cannot_do_says_what_to_use_instead(groups: list[RingProcessGroup], method: str) -> None:
    with pytest.raises(NotImplementedError, match=r"the backend ringwide .*; use "):
        getattr(groups[0], method)([0])


# -- monitored barrier


def test_all_pass_a_monitored_barrier_and_leave_nothing_behind(groups: list[RingProcessGroup]) -> None:
    assert in_both(lambda group: group.monitored_barrier(ENOUGH), groups) == [None, None]
    keys = groups[0].get_group_store().num_keys()
    for _ in range(3):
        assert in_both(lambda group: group.monitored_barrier(wait_all_ranks=True), groups) == [None, None]
    assert groups[0].get_group_store().num_keys() == keys


@pytest.mark.parametrize(
    ("wait_all_ranks", "text"),
    [
        (False, r"^\[Rank 0\]: Rank 1 failed to pass monitoredBarrier in 300 ms$"),
        (True, r"^\[Rank 0\]: Ranks 1 failed to pass monitoredBarrier in 300 ms$"),
    ],
)
def test_a_rank_that_does_not_come_is_named(groups: list[RingProcessGroup], wait_all_ranks: bool, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        groups[0].monitored_barrier(SHORT, wait_all_ranks)
    with pytest.raises(RuntimeError, match=r"Rank 1 successfully reached monitoredBarrier, but .*\(Ranks? 1 failed"):
        groups[1].monitored_barrier(SHORT)  # too late
    assert in_both(lambda group: group.monitored_barrier(ENOUGH), groups) == [None, None]


def test_who_waits_for_rank_0_in_vain_says_so(groups: list[RingProcessGroup]) -> None:
    with pytest.raises(TimeoutError, match=r"Rank 1 successfully .*none in 300 ms"):
        groups[1].monitored_barrier(SHORT)


def test_no_time_at_all_is_over_at_once(groups: list[RingProcessGroup]) -> None:
    with pytest.raises(RuntimeError, match="Rank 0 timed out in monitoredBarrier after 0 ms"):
        groups[0].monitored_barrier(timedelta(0))


# -- the forms of an operation

MAX = dist.ReduceOp.MAX
ONE, OTHER = torch.ones(1), torch.zeros(1)
ROOT_1 = SimpleNamespace(rootRank=1)
FORMS: dict[str, tuple[Callable[[RingProcessGroup, torch.Tensor], RingWork], float]] = {
    "all_reduce": (lambda group, tensor: group.allreduce([tensor]), 3.0),
    "all_reduce by": (lambda group, tensor: group.allreduce(tensor, MAX), 2.0),
    "all_reduce in time": (lambda group, tensor: group.allreduce(tensor, MAX, ENOUGH), 2.0),
    "all_reduce with names": (lambda group, tensor: group.allreduce([tensor], op=MAX, timeout=ENOUGH), 2.0),
    "broadcast": (lambda group, tensor: group.broadcast(tensor, 1), 2.0),
    "broadcast in time": (lambda group, tensor: group.broadcast(tensor, 1, ENOUGH), 2.0),
    "broadcast with names": (lambda group, tensor: group.broadcast(tensor, root=1, timeout=ENOUGH), 2.0),
    "broadcast with options": (lambda group, tensor: group.broadcast([tensor], opts=ROOT_1), 2.0),
    "reduce": (lambda group, tensor: group.reduce(tensor, 0), 3.0),
    "reduce by": (lambda group, tensor: group.reduce(tensor, 0, MAX, ENOUGH), 2.0),
    "gather": (lambda group, tensor: group.gather([tensor, OTHER] if group.rank() == 0 else [], ONE.clone(), 0), 1.0),
    "scatter": (lambda group, tensor: group.scatter(tensor, [ONE + 6] * 2 if group.rank() == 0 else [], 0), 7.0),
    "reduce_scatter": (lambda group, tensor: group.reduce_scatter(tensor, [ONE.clone(), ONE.clone()], MAX), 1.0),
    "all_gather": (lambda group, tensor: group.allgather([tensor, torch.ones(1)], ONE.clone(), ENOUGH), 1.0),
    "all_to_all": (lambda group, tensor: group.alltoall([tensor, torch.ones(1)], [ONE + 1, ONE + 1], ENOUGH), 2.0),
    "all_to_all as one": (lambda group, tensor: group.alltoall_base(torch.ones(2), torch.ones(2), [], [], ENOUGH), 1.0),
    "barrier": (lambda group, tensor: group.barrier(ENOUGH), 1.0),
    "barrier with names": (lambda group, tensor: group.barrier(timeout=ENOUGH), 1.0),
}


@pytest.mark.parametrize("name", FORMS)
def test_an_operation_takes_what_torch_takes(groups: list[RingProcessGroup], name: str) -> None:
    act, expected = FORMS[name]
    own = {group: torch.full((1,), group.rank() + 1.0) for group in groups}
    assert outcomes(groups, lambda group: act(group, own[group])) == [None, None]
    assert own[groups[0]].item() == expected


def test_an_option_that_does_not_exist_is_named(groups: list[RingProcessGroup]) -> None:
    with pytest.raises(TypeError, match="unknown option patience; an operation takes opts, or root, op and timeout"):
        groups[0].barrier(patience=ENOUGH)


def test_an_operation_has_a_timeout_of_its_own(groups: list[RingProcessGroup]) -> None:
    options = dist.BarrierOptions()
    options.timeout = SHORT
    with pytest.raises(RuntimeError, match=r"barrier: Timed out waiting 300ms, its own timeout"):
        groups[0].barrier(options).wait()
    with pytest.raises(ringwide.CollectiveAborted):
        groups[1].barrier().wait()
    require_right_sums(groups)
