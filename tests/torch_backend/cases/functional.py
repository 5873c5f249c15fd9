"""Functional collectives, which compiled programs, DTensor and FSDP2 use, and the coalescing manager."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from tests.torch_backend.world import Family, World, same
from torch.distributed.distributed_c10d import _coalescing_manager

FAMILY = Family("functional")
case = FAMILY.case


def _group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


@case
def all_reduce(world: World) -> None:
    ours = world.mine(4)
    for operation, expected in (("sum", world.total), ("max", world.size), ("avg", world.total / world.size)):
        found = functional.wait_tensor(functional.all_reduce(ours, operation, _group()))
        same(found, world.full(expected, 4), operation)
        same(ours, world.mine(4), "the input")


@case
def all_reduce_that_waits_when_it_is_used(world: World) -> None:
    found = functional.all_reduce(world.mine(4), "sum", _group())
    same(found + 1, world.full(world.total + 1, 4))


@case
def broadcast(world: World) -> None:
    found = functional.wait_tensor(functional.broadcast(world.mine(4), 1, _group()))
    same(found, world.full(2, 4))


@case
def all_gather_tensor(world: World) -> None:
    for dimension in (0, 1):
        found = functional.wait_tensor(functional.all_gather_tensor(world.mine(2, 3), dimension, _group()))
        same(found, torch.cat([world.full(rank + 1, 2, 3) for rank in world.ranks], dim=dimension))


@case
def reduce_scatter_tensor(world: World) -> None:
    for dimension in (0, 1):
        ours = world.mine(*((2 * world.size, 3) if dimension == 0 else (3, 2 * world.size)))
        found = functional.wait_tensor(functional.reduce_scatter_tensor(ours, "sum", dimension, _group()))
        same(found, world.full(world.total, *((2, 3) if dimension == 0 else (3, 2))))


@case
def all_reduce_coalesced(world: World) -> None:
    found = functional.all_reduce_coalesced([world.mine(3), world.mine(2, 2)], "sum", _group())
    for tensor in found:
        same(functional.wait_tensor(tensor), world.full(world.total, *tensor.shape))


@case
def all_gather_into_tensor_coalesced(world: World) -> None:
    ours = [world.mine(3), world.mine(2, 2)]
    for tensor, mine in zip(functional.all_gather_into_tensor_coalesced(ours, _group()), ours, strict=True):
        expected = torch.cat([world.full(rank + 1, *mine.shape) for rank in world.ranks])
        same(functional.wait_tensor(tensor), expected)


@case
def reduce_scatter_tensor_coalesced(world: World) -> None:
    ours = [world.mine(world.size), world.mine(2 * world.size, 2)]
    found = functional.reduce_scatter_tensor_coalesced(ours, "sum", [0, 0], _group())
    for tensor, rows in zip(found, (1, 2), strict=True):
        same(functional.wait_tensor(tensor), world.full(world.total, *((1,) if rows == 1 else (2, 2))))


@case
def all_to_all_single(world: World) -> None:
    ours = torch.cat([world.full(10 * world.rank + to, to + 1) for to in world.ranks])
    given, taken = [to + 1 for to in world.ranks], [world.rank + 1] * world.size
    found = functional.wait_tensor(functional.all_to_all_single(ours, taken, given, _group()))
    same(found, torch.cat([world.full(10 * source + world.rank, world.rank + 1) for source in world.ranks]))


@case
def all_gather_with_a_gradient(world: World) -> None:
    ours = world.mine(2).requires_grad_()
    found = functional.all_gather_tensor_autograd(ours, 0, _group())
    (found * (world.rank + 1)).sum().backward()
    assert ours.grad is not None
    same(ours.grad, world.full(world.total, 2))


@case
def all_reduce_with_a_gradient(world: World) -> None:
    ours = world.mine(2).requires_grad_()
    (differentiable.all_reduce(ours) * (world.rank + 1)).sum().backward()
    assert ours.grad is not None
    same(ours.grad, world.full(world.total, 2))


@case
def on_the_group_of_a_part(world: World) -> None:
    group = dist.new_group([0, world.size - 1])
    if world.rank in (0, world.size - 1):
        found = functional.wait_tensor(functional.all_reduce(world.mine(4), "sum", group))
        same(found, world.full(1 + world.size, 4))
        dist.destroy_process_group(group)


@case
def coalesced_all_reduces(world: World) -> None:
    tensors = [world.mine(3), world.mine(2, 5), world.mine(70_000)]
    with _coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        same(tensor, world.full(world.total, *tensor.shape))


@case
def coalesced_all_reduces_in_the_background(world: World) -> None:
    tensors = [world.mine(3), world.mine(2, 5)]
    with _coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        same(tensor, world.full(world.total, *tensor.shape))


@case
def coalesced_all_gathers(world: World) -> None:
    found = [world.full(-1, world.size * count) for count in (3, 5)]
    with _coalescing_manager():
        for whole, count in zip(found, (3, 5), strict=True):
            dist.all_gather_into_tensor(whole, world.mine(count))
    for whole, count in zip(found, (3, 5), strict=True):
        same(whole, torch.cat([world.full(rank + 1, count) for rank in world.ranks]))


@case
def coalesced_reduce_scatters(world: World) -> None:
    found = [world.full(-1, count) for count in (3, 5)]
    with _coalescing_manager():
        for part, count in zip(found, (3, 5), strict=True):
            dist.reduce_scatter_tensor(part, world.mine(world.size * count))
    for part in found:
        same(part, world.full(world.total, *part.shape))
