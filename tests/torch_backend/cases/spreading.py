"""broadcast, all_gather, gather, scatter and all_to_all."""

import warnings

import torch
import torch.distributed as dist
from tests.torch_backend.cases.numbers import DTYPES, brought_by, name_of
from tests.torch_backend.world import Family, World, same

FAMILY = Family("spreading")
case = FAMILY.case


def _broadcast(world: World, dtype: torch.dtype) -> None:
    for root in world.ranks:
        tensor = brought_by(world.rank, dtype).to(world.device)
        dist.broadcast(tensor, root)
        same(tensor, brought_by(root, dtype), f"broadcast of {root}")


def _all_gather(world: World, dtype: torch.dtype) -> None:
    ours = brought_by(world.rank, dtype).to(world.device)
    found = [torch.empty_like(ours) for _ in world.ranks]
    dist.all_gather(found, ours)
    for rank, part in enumerate(found):
        same(part, brought_by(rank, dtype), f"all_gather, of {rank}")


for _dtype in DTYPES:
    FAMILY.add(f"broadcast {name_of(_dtype)}", lambda world, dtype=_dtype: _broadcast(world, dtype))  # type: ignore[misc]
    FAMILY.add(f"all_gather {name_of(_dtype)}", lambda world, dtype=_dtype: _all_gather(world, dtype))  # type: ignore[misc]


@case
def broadcast_in_the_background(world: World) -> None:
    tensor = world.mine(2, 3)
    work = dist.broadcast(tensor, 1, async_op=True)
    assert work is not None
    work.wait()
    same(tensor, world.full(2, 2, 3))


@case
def broadcast_into_a_tensor_that_is_not_contiguous(world: World) -> None:
    tables = [world.full(9, 4, 4) for _ in world.ranks]
    for root, table in enumerate(tables):
        table[:, ::2] = world.rank + 1
        dist.broadcast(table[:, ::2], root)
    for root, table in enumerate(tables):
        same(table[:, ::2], world.full(root + 1, 4, 2))
        same(table[:, 1::2], world.full(9, 4, 2), "what lies between")


@case
def broadcast_of_nothing_and_of_a_scalar(world: World) -> None:
    dist.broadcast(world.full(0, 0), 0)
    scalar = torch.tensor(world.rank + 5.0, device=world.device)
    dist.broadcast(scalar, 1)
    assert scalar == 6


@case
def all_gather_of_a_scalar(world: World) -> None:
    found = [torch.tensor(-1.0) for _ in world.ranks]
    dist.all_gather(found, torch.tensor(float(world.rank)))
    assert [part.item() for part in found] == list(world.ranks)


@case
def all_gather_of_different_lengths(world: World) -> None:
    found = [world.full(-1, rank + 1) for rank in world.ranks]
    dist.all_gather(found, world.mine(world.rank + 1))
    for rank, part in enumerate(found):
        same(part, world.full(rank + 1, rank + 1))


@case
def all_gather_in_the_background_of_a_tensor_that_is_not_contiguous(world: World) -> None:
    found = [world.full(-1, 2, 3) for _ in world.ranks]
    work = dist.all_gather(found, world.mine(3, 2).t(), async_op=True)
    assert work is not None
    work.wait()
    for rank, part in enumerate(found):
        same(part, world.full(rank + 1, 2, 3))


@case
def all_gather_into_rows_of_one_tensor(world: World) -> None:
    table = world.full(-1, world.size, 4)
    dist.all_gather(list(table), world.mine(4))
    same(table, torch.stack([world.full(rank + 1, 4) for rank in world.ranks]))


@case
def all_gather_into_tensor_end_to_end(world: World) -> None:
    whole = world.full(-1, world.size * 2, 3)
    dist.all_gather_into_tensor(whole, world.mine(2, 3))
    same(whole, torch.cat([world.full(rank + 1, 2, 3) for rank in world.ranks]))


@case
def all_gather_into_tensor_stacked(world: World) -> None:
    whole = world.full(-1, world.size, 2, 3)
    work = dist.all_gather_into_tensor(whole, world.mine(2, 3), async_op=True)
    assert work is not None
    work.wait()
    same(whole, torch.stack([world.full(rank + 1, 2, 3) for rank in world.ranks]))


@case
def all_gather_into_tensor_whose_part_is_the_input(world: World) -> None:
    whole = world.full(-1, world.size * 3)
    part = whole[world.rank * 3 : world.rank * 3 + 3]
    part.fill_(world.rank + 1)
    dist.all_gather_into_tensor(whole, part)
    same(whole, torch.cat([world.full(rank + 1, 3) for rank in world.ranks]))


@case
def gather_to_each_root(world: World) -> None:
    for root in world.ranks:
        found = [world.full(-1, 4) for _ in world.ranks] if world.rank == root else None
        dist.gather(world.mine(4), found, dst=root)
        for rank, part in enumerate(found or []):
            same(part, world.full(rank + 1, 4), f"gather to {root}")


@case
def gather_in_the_background(world: World) -> None:
    found = [world.full(-1, 4) for _ in world.ranks] if world.rank == 1 else None
    work = dist.gather(world.mine(4), found, dst=1, async_op=True)
    assert work is not None
    work.wait()
    for rank, part in enumerate(found or []):
        same(part, world.full(rank + 1, 4))


@case
def scatter_from_each_root(world: World) -> None:
    for root in world.ranks:
        parts = [world.full(10 * root + to, 3, 2) for to in world.ranks] if world.rank == root else None
        mine = world.full(-1, 3, 2)
        dist.scatter(mine, parts, src=root)
        same(mine, world.full(10 * root + world.rank, 3, 2), f"scatter from {root}")


@case
def scatter_in_the_background(world: World) -> None:
    parts = [world.full(to, 5) for to in world.ranks] if world.rank == 0 else None
    mine = world.full(-1, 5)
    work = dist.scatter(mine, parts, src=0, async_op=True)
    assert work is not None
    work.wait()
    same(mine, world.full(world.rank, 5))


@case
def all_to_all_of_a_list(world: World) -> None:
    parts = [world.full(10 * world.rank + to, 2, 2) for to in world.ranks]
    found = [world.full(-1, 2, 2) for _ in world.ranks]
    dist.all_to_all(found, parts)
    for rank, part in enumerate(found):
        same(part, world.full(10 * rank + world.rank, 2, 2))


@case
def all_to_all_of_a_list_of_different_lengths(world: World) -> None:
    parts = [world.full(10 * world.rank + to, to + 1) for to in world.ranks]
    found = [world.full(-1, world.rank + 1) for _ in world.ranks]
    work = dist.all_to_all(found, parts, async_op=True)
    assert work is not None
    work.wait()
    for rank, part in enumerate(found):
        same(part, world.full(10 * rank + world.rank, world.rank + 1))


@case
def all_to_all_single_in_equal_parts(world: World) -> None:
    ours = torch.cat([world.full(10 * world.rank + to, 2, 3) for to in world.ranks])
    found = torch.full_like(ours, -1)
    dist.all_to_all_single(found, ours)
    same(found, torch.cat([world.full(10 * rank + world.rank, 2, 3) for rank in world.ranks]))


@case
def all_to_all_single_in_uneven_parts(world: World) -> None:
    """Rank a gives rank b one row more than b's number; rank 0 gets nothing from itself."""
    given = [to + 1 if (world.rank, to) != (0, 0) else 0 for to in world.ranks]
    taken = [world.rank + 1 if (source, world.rank) != (0, 0) else 0 for source in world.ranks]
    ours = torch.cat([world.full(10 * world.rank + to, rows, 2) for to, rows in enumerate(given)])
    found = world.full(-1, sum(taken), 2)
    work = dist.all_to_all_single(found, ours, taken, given, async_op=True)
    assert work is not None
    work.wait()
    same(found, torch.cat([world.full(10 * source + world.rank, rows, 2) for source, rows in enumerate(taken)]))


@case
def all_to_all_single_of_complex_numbers(world: World) -> None:
    ours = torch.cat([world.full(10 * world.rank + to, 1) * (1 + 2j) for to in world.ranks])
    found = torch.zeros_like(ours)
    dist.all_to_all_single(found, ours)
    same(found, torch.cat([world.full(10 * rank + world.rank, 1) * (1 + 2j) for rank in world.ranks]))


@case
def in_inference_mode(world: World) -> None:
    """As evaluations are: such tensors may be changed in that mode only, which is a matter of the thread."""
    with torch.inference_mode():
        ours, count = world.mine(3), world.size
        found = [torch.empty_like(ours) for _ in world.ranks]
        dist.all_gather(found, ours)
        everybody: list[object] = [None] * count
        dist.all_gather_object(everybody, world.rank)
        half = world.mine(4, dtype=torch.bfloat16)
        dist.all_reduce(half)
        exchanged = world.full(-1, count)
        dist.all_to_all_single(exchanged, world.mine(count))
        part = world.full(-1, 2)
        dist.reduce_scatter(part, [world.mine(2) for _ in world.ranks])
    same(torch.stack(found), torch.arange(1.0, count + 1).repeat(3, 1).t().contiguous())
    assert everybody == list(world.ranks)
    same(half, world.full(world.total, 4, dtype=torch.bfloat16))
    same(exchanged, torch.arange(1.0, count + 1))
    same(part, world.full(world.total, 2))


def _all_gather_coalesced(world: World, shapes: list[tuple[int, ...]]) -> None:
    """`found[rank][i]` is that rank's tensor i."""
    ours = [world.full(10 * world.rank + number, *shape) for number, shape in enumerate(shapes)]
    found = [[torch.empty(shape) for shape in shapes] for _ in world.ranks]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the name alone
        dist.all_gather_coalesced(found, ours)
    for rank, parts in enumerate(found):
        for number, part in enumerate(parts):
            same(part, world.full(10 * rank + number, *shapes[number]), f"tensor {number} of rank {rank}")


for _shapes in ([(2,)], [(2,), (2,)], [(2,), (2,), (2,)], [(2, 2), (1,), (3,), (2,)]):
    FAMILY.add(
        f"all_gather_coalesced of {_shapes}",
        lambda world, shapes=_shapes: _all_gather_coalesced(world, shapes),  # type: ignore[misc]
    )
