"""all_reduce, reduce and reduce_scatter: every operation, every dtype, every form of tensor."""

import warnings

import torch
import torch.distributed as dist
from tests.torch_backend.cases.numbers import (
    COUNT,
    DTYPES,
    OPERATIONS,
    brought_by,
    close,
    combined,
    makes_sense,
    name_of,
)
from tests.torch_backend.world import Family, World, same

FAMILY = Family("reducing")
case = FAMILY.case


def _all_reduce(world: World, operation: str, dtype: torch.dtype) -> None:
    tensor = brought_by(world.rank, dtype).to(world.device)
    dist.all_reduce(tensor, OPERATIONS[operation])
    close(tensor, combined(operation, dtype, world.ranks), operation, "all_reduce")


def _reduce_to_each_root(world: World, operation: str) -> None:
    for root in world.ranks:
        tensor = brought_by(world.rank, torch.float32).to(world.device)
        dist.reduce(tensor, root, OPERATIONS[operation])
        if world.rank == root:
            close(tensor, combined(operation, torch.float32, world.ranks), operation, f"reduce to {root}")


def _reduce_scatter_tensor(world: World, operation: str) -> None:
    count = 5 * world.size
    tensor = brought_by(world.rank, torch.float32, count).to(world.device)
    part = world.full(-1, 5)
    dist.reduce_scatter_tensor(part, tensor, OPERATIONS[operation])
    whole = combined(operation, torch.float32, world.ranks, count)
    close(part, whole[5 * world.rank : 5 * world.rank + 5], operation, "reduce_scatter_tensor")
    same(tensor, brought_by(world.rank, torch.float32, count), "the input of reduce_scatter_tensor")


for _operation in OPERATIONS:
    for _dtype in DTYPES:
        if makes_sense(_operation, _dtype):
            FAMILY.add(
                f"all_reduce {_operation} of {name_of(_dtype)}",
                lambda world, operation=_operation, dtype=_dtype: _all_reduce(world, operation, dtype),  # type: ignore[misc]
            )

for _operation in ("sum", "avg", "product", "min", "max"):
    FAMILY.add(
        f"reduce {_operation} to each root",
        lambda world, operation=_operation: _reduce_to_each_root(world, operation),  # type: ignore[misc]
    )
    FAMILY.add(
        f"reduce_scatter_tensor {_operation}",
        lambda world, operation=_operation: _reduce_scatter_tensor(world, operation),  # type: ignore[misc]
    )


@case
def all_reduce_in_the_background(world: World) -> None:
    tensor = world.mine(COUNT)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    same(tensor, world.full(world.total, COUNT))


@case
def all_reduce_of_a_large_tensor(world: World) -> None:
    count = 1_500_000  # several segments for each rank, and the last one is short
    tensor = world.mine(count)
    dist.all_reduce(tensor)
    same(tensor, world.full(world.total, count))


@case
def all_reduce_of_a_tensor_that_is_not_contiguous(world: World) -> None:
    whole = world.full(7, 6, 8)
    columns = whole[:, ::2]
    columns.fill_(world.rank + 1)
    dist.all_reduce(columns)
    same(whole[:, ::2], world.full(world.total, 6, 4))
    same(whole[:, 1::2], world.full(7, 6, 4), "what lies between")


@case
def all_reduce_of_a_transposed_tensor(world: World) -> None:
    rows = (torch.arange(12.0).reshape(3, 4) * (world.rank + 1)).to(world.device)
    dist.all_reduce(rows.t())
    same(rows, torch.arange(12.0).reshape(3, 4) * world.total)


@case
def all_reduce_of_nothing(world: World) -> None:
    tensor = world.full(0, 0)
    dist.all_reduce(tensor)
    assert tensor.shape == (0,)


@case
def all_reduce_of_a_scalar(world: World) -> None:
    tensor = torch.tensor(float(world.rank + 1), device=world.device)
    dist.all_reduce(tensor)
    same(tensor, torch.tensor(float(world.total)))


@case
def all_reduce_of_a_parameter(world: World) -> None:
    parameter = torch.nn.Parameter(world.mine(3, 4))
    with torch.no_grad():
        dist.all_reduce(parameter)
    same(parameter.detach(), world.full(world.total, 3, 4))
    assert parameter.requires_grad


@case
def all_reduce_of_a_leaf_that_requires_grad(world: World) -> None:
    leaf = world.mine(5).requires_grad_()
    dist.all_reduce(leaf.data)
    same(leaf.detach(), world.full(world.total, 5))


@case
def all_reduce_of_two_views_of_one_tensor(world: World) -> None:
    whole = world.mine(10)
    works = [dist.all_reduce(half, async_op=True) for half in (whole[:5], whole[5:])]
    for work in works:
        assert work is not None
        work.wait()
    same(whole, world.full(world.total, 10))


@case
def all_reduce_keeps_nan_and_infinity(world: World) -> None:
    tensor = world.mine(3)
    if world.rank == 0:
        tensor[0], tensor[1] = float("nan"), float("inf")
    dist.all_reduce(tensor)
    assert tensor[0].isnan()
    assert tensor[1] == float("inf")
    assert tensor[2] == world.total


@case
def all_reduce_ends_with_the_same_bits_everywhere(world: World) -> None:
    tensor = torch.randn(10_001, generator=torch.Generator().manual_seed(world.rank))
    dist.all_reduce(tensor)
    bits = tensor.view(torch.int32)
    least, most = bits.clone(), bits.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    same(least, most)


@case
def all_reduce_coalesced_of_several_shapes(world: World) -> None:
    tensors = [world.mine(3), world.mine(2, 5), world.mine(1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the name alone
        dist.all_reduce_coalesced(tensors)
    for tensor in tensors:
        same(tensor, world.full(world.total, *tensor.shape))


@case
def reduce_leaves_other_ranks_something_of_the_same_shape(world: World) -> None:
    tensor = world.mine(2, 3)
    dist.reduce(tensor, dst=0)
    assert tensor.shape == (2, 3)
    if world.rank == 0:
        same(tensor, world.full(world.total, 2, 3))


@case
def reduce_in_the_background(world: World) -> None:
    tensor, last = world.mine(9), world.size - 1
    work = dist.reduce(tensor, dst=last, async_op=True)
    assert work is not None
    work.wait()
    if world.rank == last:
        same(tensor, world.full(world.total, 9))


@case
def all_reduce_of_sparse_tensors_with_different_entries(world: World) -> None:
    indices = torch.tensor([list(range(world.rank + 1))])
    values = torch.full((world.rank + 1, 3), 0.1 * (world.rank + 1))
    tensor = torch.sparse_coo_tensor(indices, values, (9, 3), check_invariants=True)
    dist.all_reduce(tensor)
    expected = torch.zeros(9, 3)
    for rank in world.ranks:  # the same bits: all add up in the order of the ranks
        expected[: rank + 1] += 0.1 * (rank + 1)
    assert tensor.is_coalesced()
    same(tensor.to_dense(), expected)


@case
def reduce_scatter_of_a_list(world: World) -> None:
    parts = [world.full((world.rank + 1) * (to + 1), 2, 3) for to in world.ranks]
    mine = world.full(-1, 2, 3)
    dist.reduce_scatter(mine, parts)
    same(mine, world.full(world.total * (world.rank + 1), 2, 3))


@case
def reduce_scatter_of_a_list_of_different_lengths(world: World) -> None:
    parts = [world.full(world.rank + 1, to + 1) for to in world.ranks]
    mine = world.full(-1, world.rank + 1)
    dist.reduce_scatter(mine, parts)
    same(mine, world.full(world.total, world.rank + 1))


@case
def reduce_scatter_tensor_of_rows(world: World) -> None:
    whole = world.mine(2 * world.size, 3)
    mine = world.full(-1, 2, 3)
    work = dist.reduce_scatter_tensor(mine, whole, async_op=True)
    assert work is not None
    work.wait()
    same(mine, world.full(world.total, 2, 3))
