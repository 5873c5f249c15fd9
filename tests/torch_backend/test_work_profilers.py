"""Profilers see operations under gloo's names, with the shapes of what goes in."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.torch_backend.two_threads import outcomes
from torch.profiler import ProfilerActivity, profile

from ringwide.torch import process_group
from ringwide.torch.process_group import RingProcessGroup
from ringwide.torch.work import RingWork

Act = Callable[[RingProcessGroup], RingWork]
ROOT = SimpleNamespace(rootRank=0, reduceOp=torch.distributed.ReduceOp.SUM)


def full(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


OPERATIONS: dict[str, tuple[Act, str, list[list[int]]]] = {
    "all_reduce": (lambda group: group.allreduce([full(2, 3)]), "all_reduce", [[2, 3]]),
    "all_reduce of several": (lambda group: group.allreduce_coalesced([full(2), full(3)]), "all_reduce", [[2], [3]]),
    "all_reduce of the hook": (lambda group: group.average(full(2), lambda: "bucket 0"), "all_reduce", [[2]]),
    "reduce": (lambda group: group.reduce([full(2)], ROOT), "reduce", [[2]]),
    "reduce_scatter": (lambda group: group.reduce_scatter_single(full(2), full(4)), "reduce_scatter", [[4]]),
    "reduce_scatter of lists": (
        lambda group: group.reduce_scatter([full(2)], [[full(2)] * 2]),
        *("reduce_scatter", [[2], [2]]),
    ),
    "reduce_scatter of several": (
        lambda group: group.reduce_scatter_single_coalesced([full(1), full(2)], [full(2), full(4)]),
        *("reduce_scatter", [[2], [4]]),
    ),
    "broadcast": (lambda group: group.broadcast([full(2)], ROOT), "broadcast", [[2]]),
    "all_gather": (lambda group: group.allgather([[full(2), full(2)]], [full(2)]), "all_gather", [[2]]),
    "all_gather into one": (lambda group: group.all_gather_single(full(4), full(2)), "all_gather", [[2]]),
    "all_gather into some": (
        lambda group: group.all_gather_single_coalesced([full(4), full(2)], [full(2), full(1)]),
        *("all_gather", [[2], [1]]),
    ),
    "all_gather of several": (
        lambda group: group.allgather_coalesced([[full(2), full(1)] for _ in range(2)], [full(2), full(1)]),
        *("all_gather", [[2], [1]]),
    ),
    "gather": (
        lambda group: group.gather([] if group.rank() else [[full(2), full(2)]], [full(2)], ROOT),
        *("gather", [[2]]),
    ),
    "scatter": (
        lambda group: group.scatter([full(2)], [] if group.rank() else [[full(2), full(2)]], ROOT),
        *("scatter", [[2], [2]]),
    ),
    "all_to_all": (lambda group: group.alltoall([full(2), full(2)], [full(2), full(2)]), "all_to_all", [[2], [2]]),
    "all_to_all as one": (lambda group: group.all_to_all_single(full(4), full(4), [], []), "all_to_all", [[4]]),
    "barrier": (lambda group: group.barrier(), "barrier", []),
    "send": (
        lambda group: group.recv([full(3)], 0, 7) if group.rank() else group.send([full(3)], 1, 7),
        *("send", [[3]]),
    ),
    "receive": (
        lambda group: group.send([full(3)], 0, 7) if group.rank() else group.recv([full(3)], 1, 7),
        *("recv", [[3]]),
    ),
    "receive from anybody": (
        lambda group: group.send([full(3)], 0, 7) if group.rank() else group.recv_anysource([full(3)], 7),
        *("recvAnySource", [[3]]),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_one_event(groups: list[RingProcessGroup], name: str) -> None:
    act, title, shapes = OPERATIONS[name]
    other = act(groups[1])
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        act(groups[0]).wait()
    other.wait()
    found: list[Any] = [event for event in seen.events() if event.name.startswith("ringwide:")]
    assert [(event.name, event.input_shapes) for event in found] == [(f"ringwide:{title}", shapes)]
    assert found[0].is_async  # it ends on another thread
    assert 0 < found[0].time_range.elapsed_us() < 60e6


def test_one_that_cannot_begin_ends_in_the_profile_too(groups: list[RingProcessGroup]) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as seen, pytest.raises(ValueError, match="2 tensors; give one"):
        groups[0].send([full(2), full(2)], 1, 0).wait()
    (event,) = [event for event in seen.events() if event.name == "ringwide:send"]
    assert event.is_async


def test_without_a_profiler_nothing_is_recorded(
    groups: list[RingProcessGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("recorded")

    monkeypatch.setattr(process_group, "recorded", never)
    assert outcomes(groups, lambda group: group.allreduce([full(2)])) == [None, None]
