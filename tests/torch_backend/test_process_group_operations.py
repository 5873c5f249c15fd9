"""One operation of torch is one call of the ring: ranks are threads here, and have a store in memory."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch_backend.two_threads import Operation, error_of, outcomes, require_right_sums

import ringwide
from interrupting import Two
from ringwide.torch.process_group import RingProcessGroup
from ringwide.torch.work import RingWork

Tensor = torch.Tensor
ROOT = SimpleNamespace(rootRank=0)


# -- several tensors

SHAPES: list[list[tuple[int, ...]]] = [[(2,)], [(2,), (3,)], [(1, 2), (2,), (0,)]]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtypes", [[torch.float32], [torch.int64, torch.bfloat16, torch.bool]], ids=str)
def test_what_is_gathered_together_is_found_by_rank(
    groups: list[RingProcessGroup], shapes: list[tuple[int, ...]], dtypes: list[torch.dtype]
) -> None:
    def brought(rank: int) -> list[Tensor]:
        kinds = (dtypes * 3)[: len(shapes)]
        return [torch.full(shape, rank * 3 + i).to(kinds[i]) for i, shape in enumerate(shapes)]

    found = {group: [[torch.zeros_like(part) for part in brought(rank)] for rank in range(2)] for group in groups}
    before = groups[0].ring.statistics().collectives
    assert outcomes(groups, lambda group: group.allgather_coalesced(found[group], brought(group.rank()))) == [None] * 2
    for own in found.values():
        for rank in range(2):
            assert all(map(torch.equal, own[rank], brought(rank)))
    assert groups[0].ring.statistics().collectives == before + 1


def test_what_is_gathered_together_may_have_other_lengths_on_other_ranks(groups: list[RingProcessGroup]) -> None:
    def brought(rank: int) -> list[Tensor]:
        return [torch.full((rank + 1,), rank + 1.0), torch.full((2 - rank,), rank + 10)]

    found = {group: [[torch.zeros_like(part) for part in brought(rank)] for rank in range(2)] for group in groups}
    assert outcomes(groups, lambda group: group.allgather_coalesced(found[group], brought(group.rank()))) == [None] * 2
    for own in found.values():
        for rank in range(2):
            assert all(map(torch.equal, own[rank], brought(rank)))


def test_the_same_bytes_cut_otherwise_are_a_mismatch_on_all_ranks(groups: list[RingProcessGroup]) -> None:
    found: list[Tensor] = []

    def operation(group: RingProcessGroup) -> RingWork:
        lengths = [1, 2] if group.rank() else [2, 1]
        own = [[torch.zeros(length) for length in lengths] for _ in range(2)]
        found.extend(part for parts in own for part in parts)
        return group.allgather_coalesced(own, [torch.ones(length) for length in lengths])

    for error in outcomes(groups, operation):
        assert isinstance(error, ringwide.CollectiveMismatch)
    assert not any(part.any() for part in found)
    require_right_sums(groups)


@pytest.mark.parametrize("other", [torch.float32, torch.int32])
def test_what_is_scattered_together_is_one_call(groups: list[RingProcessGroup], other: torch.dtype) -> None:
    def parts(group: RingProcessGroup) -> list[list[Tensor]]:
        mine = group.rank() + 1
        return [
            [torch.full((3,), float(mine + 10 * to)) for to in range(2)],
            [torch.full((to + 1,), mine + 20 * to, dtype=other) for to in range(2)],
        ]

    outputs = {group: [torch.zeros(3), torch.zeros(group.rank() + 1, dtype=other)] for group in groups}
    before = groups[0].ring.statistics().collectives
    assert outcomes(groups, lambda group: group.reduce_scatter(outputs[group], parts(group))) == [None] * 2
    for rank, group in enumerate(groups):
        assert outputs[group][0].tolist() == [3.0 + 20 * rank] * 3
        assert outputs[group][1].tolist() == [3 + 40 * rank] * (rank + 1)
    assert groups[0].ring.statistics().collectives == before + 1


def test_flat_tensors_that_go_together_are_one_call(groups: list[RingProcessGroup]) -> None:
    gathered = {group: [torch.zeros(2), torch.zeros(4, dtype=torch.int64)] for group in groups}
    scattered = {group: [torch.zeros(1), torch.zeros(2)] for group in groups}
    before = groups[0].ring.statistics().collectives
    assert (
        outcomes(
            groups,
            lambda group: group.all_gather_single_coalesced(
                gathered[group], [torch.full((1,), float(group.rank())), torch.full((2,), group.rank())]
            ),
        )
        == [None] * 2
    )
    assert (
        outcomes(
            groups,
            lambda group: group.reduce_scatter_single_coalesced(
                scattered[group], [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0, 4.0, 4.0])]
            ),
        )
        == [None] * 2
    )
    for rank, group in enumerate(groups):
        assert [tensor.tolist() for tensor in gathered[group]] == [[0.0, 1.0], [0, 0, 1, 1]]
        assert [tensor.tolist() for tensor in scattered[group]] == [[2.0 * (rank + 1)], [6.0 + 2 * rank] * 2]
    assert groups[0].ring.statistics().collectives == before + 2


# -- operations that cannot begin

ONE, TWO = (lambda: torch.ones(1)), (lambda: [torch.ones(1), torch.ones(1)])


def _premultiplied() -> Any:
    return SimpleNamespace(reduceOp=SimpleNamespace(op=dist.ReduceOp.PREMUL_SUM), rootRank=0)


def _read_only() -> Tensor:
    return torch.ones(1).expand(2)


BAD: dict[str, tuple[Operation, Operation]] = {
    "all_reduce by PREMUL_SUM": (
        lambda group: group.allreduce([ONE()], _premultiplied()),
        lambda group: group.allreduce([ONE()]),
    ),
    "all_reduce of complex by a minimum": (
        lambda group: group.allreduce([torch.ones(1, dtype=torch.complex64)], dist.ReduceOp.MIN),
        lambda group: group.allreduce([ONE()], dist.ReduceOp.MIN),
    ),
    "all_reduce of something else": (
        lambda group: group.allreduce(["a tensor"]),
        lambda group: group.allreduce([ONE()]),
    ),
    "all_reduce of nothing iterable": (lambda group: group.allreduce(None), lambda group: group.allreduce([ONE()])),
    "reduce by PREMUL_SUM": (
        lambda group: group.reduce([ONE()], _premultiplied()),
        lambda group: group.reduce([ONE()], SimpleNamespace(reduceOp=dist.ReduceOp.SUM, rootRank=0)),
    ),
    "broadcast without a root": (
        lambda group: group.broadcast([ONE()], None),
        lambda group: group.broadcast([ONE()], ROOT),
    ),
    "broadcast of something else": (
        lambda group: group.broadcast(["a tensor"], ROOT),
        lambda group: group.broadcast([ONE()], ROOT),
    ),
    "reduce_scatter of too few elements": (
        lambda group: group.reduce_scatter_single(torch.ones(2), torch.ones(3)),
        lambda group: group.reduce_scatter_single(torch.ones(2), torch.ones(4)),
    ),
    "reduce_scatter of too few inputs": (
        lambda group: group.reduce_scatter([ONE(), ONE()], [TWO()]),
        lambda group: group.reduce_scatter([ONE()], [TWO()]),
    ),
    "reduce_scatter of too few parts": (
        lambda group: group.reduce_scatter([ONE()], [[ONE()]]),
        lambda group: group.reduce_scatter([ONE()], [TWO()]),
    ),
    "coalesced reduce_scatter of too few inputs": (
        lambda group: group.reduce_scatter_single_coalesced(TWO(), [torch.ones(2)]),
        lambda group: group.reduce_scatter_single_coalesced(TWO(), [torch.ones(2), torch.ones(2)]),
    ),
    "all_gather into too few elements": (
        lambda group: group.all_gather_single(torch.ones(3), torch.ones(2)),
        lambda group: group.all_gather_single(torch.ones(4), torch.ones(2)),
    ),
    "all_gather into too few outputs": (
        lambda group: group.allgather([[ONE()]], [ONE()]),
        lambda group: group.allgather([TWO()], [ONE()]),
    ),
    "all_gather into another dtype": (
        lambda group: group.allgather([[ONE(), ONE().int()]], [ONE()]),
        lambda group: group.allgather([TWO()], [ONE()]),
    ),
    "all_gather of too few inputs": (
        lambda group: group.allgather([TWO(), TWO()], [ONE()]),
        lambda group: group.allgather([TWO()], [ONE()]),
    ),
    "coalesced all_gather into too few lists": (
        lambda group: group.allgather_coalesced([TWO()], TWO()),
        lambda group: group.allgather_coalesced([TWO(), TWO()], TWO()),
    ),
    "coalesced all_gather into too few outputs": (
        lambda group: group.allgather_coalesced([TWO(), [ONE()]], TWO()),
        lambda group: group.allgather_coalesced([TWO(), TWO()], TWO()),
    ),
    "coalesced all_gather of nothing": (
        lambda group: group.allgather_coalesced([[], []], []),
        lambda group: group.allgather_coalesced([TWO(), TWO()], TWO()),
    ),
    "coalesced flat all_gather into too few elements": (
        lambda group: group.all_gather_single_coalesced([torch.ones(2), torch.ones(1)], TWO()),
        lambda group: group.all_gather_single_coalesced([torch.ones(2), torch.ones(2)], TWO()),
    ),
    "gather into too few outputs": (
        lambda group: group.gather([[ONE()]], [ONE()], ROOT),
        lambda group: group.gather([], [ONE()], ROOT),
    ),
    "gather of two": (
        lambda group: group.gather([TWO()], TWO(), ROOT),
        lambda group: group.gather([], [ONE()], ROOT),
    ),
    "scatter of too few inputs": (
        lambda group: group.scatter([ONE()], [[ONE()]], ROOT),
        lambda group: group.scatter([ONE()], [], ROOT),
    ),
    "all_to_all of too few inputs": (
        lambda group: group.alltoall(TWO(), [ONE()]),
        lambda group: group.alltoall(TWO(), TWO()),
    ),
    "all_to_all of rows that cannot be split": (
        lambda group: group.all_to_all_single(torch.ones(2), torch.ones(3), [], []),
        lambda group: group.all_to_all_single(torch.ones(2), torch.ones(2), [], []),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_an_operation_that_cannot_begin_uses_up_its_number(groups: list[RingProcessGroup], name: str) -> None:
    own, others = outcomes(groups, *BAD[name])
    assert own is not None
    assert not isinstance(own, ringwide.CollectiveError)
    assert isinstance(others, ringwide.CollectiveAborted)
    assert (others.by, others.reason) == (0, str(own))
    assert str(groups[0].error) == str(own)
    require_right_sums(groups)


def test_a_bucket_of_the_hook_that_cannot_begin_uses_up_its_number(groups: list[RingProcessGroup]) -> None:
    def unknown() -> str:
        raise LookupError("no such bucket")

    own, others = outcomes(
        groups, lambda group: group.average(ONE(), unknown), lambda group: group.average(ONE(), lambda: "bucket 0")
    )
    assert isinstance(own, LookupError)
    assert isinstance(others, ringwide.CollectiveAborted)
    require_right_sums(groups)


def test_a_message_that_cannot_begin_concerns_nobody_else(groups: list[RingProcessGroup]) -> None:
    assert isinstance(error_of(groups[0].send(TWO(), 1, 0)), ValueError)
    require_right_sums(groups)


# -- interrupts

ASYNC, SYNC = True, False
BEFORE_THE_WAIT = 10
"""Instructions of the test until it calls `wait`, and the first of `wait` itself: the operation goes on, as it would if
nobody had begun to wait."""


class TorchRank:
    """A rank of a group, whose operations are waited for."""

    def __init__(self, group: RingProcessGroup, asynchronous: bool) -> None:
        self._group = group
        self._options = dist.AllreduceOptions()
        self._options.reduceOp, self._options.asyncOp = dist.ReduceOp.SUM, asynchronous

    def full(self, value: float) -> Tensor:
        return torch.full((4,), value)

    def call(self, tensor: Tensor) -> None:
        self._group.allreduce([tensor], self._options).wait()

    def made(self) -> int:
        return self._group.ring.statistics().collectives

    def made_for(self, thread: threading.Thread) -> None:
        self._group.ring.made_for(thread)


class WaitingRank(TorchRank):
    """One whose operation is under way already: only the wait is interrupted."""

    _asked = 0

    def full(self, value: float) -> Tensor:
        tensor = super().full(value)
        self._work = self._group.allreduce([tensor], self._options)
        return tensor

    def call(self, tensor: Tensor) -> None:
        self._work.wait()

    def made(self) -> int:
        """More each time: this one is never still to be made."""
        self._asked += 1
        return self._asked


def test_a_synchronous_operation_that_is_interrupted_at_any_instruction_has_ended(
    groups: list[RingProcessGroup],
) -> None:
    two = Two(TorchRank(groups[0], SYNC), TorchRank(groups[1], SYNC))
    two.at_every_instruction()
    assert two.interrupts > 100


def test_a_wait_that_is_interrupted_at_any_instruction_has_ended_the_operation(groups: list[RingProcessGroup]) -> None:
    two = Two(WaitingRank(groups[0], ASYNC), TorchRank(groups[1], ASYNC))
    two.at_every_instruction(BEFORE_THE_WAIT)
    assert two.interrupts > 100
