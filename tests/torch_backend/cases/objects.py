"""Python objects, which torch pickles and sends as tensors of bytes: lengths differ from rank to rank."""

from typing import Any

import torch
import torch.distributed as dist
from tests.torch_backend.world import Family, World, same

FAMILY = Family("objects")
case = FAMILY.case


def _of(rank: int) -> dict[str, Any]:
    return {"rank": rank, "words": ["word"] * (rank * 50), "nothing": None}


@case
def all_gather_object(world: World) -> None:
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, _of(world.rank))
    assert found == [_of(rank) for rank in world.ranks]


@case
def gather_object(world: World) -> None:
    found: list[Any] | None = [None] * world.size if world.rank == 1 else None
    dist.gather_object(_of(world.rank), found, dst=1)
    assert found is None or found == [_of(rank) for rank in world.ranks]


@case
def scatter_object_list(world: World) -> None:
    given = [_of(rank + 10) for rank in world.ranks] if world.rank == 0 else None
    found: list[Any] = [None]
    dist.scatter_object_list(found, given, src=0)
    assert found == [_of(world.rank + 10)]


@case
def broadcast_object_list(world: World) -> None:
    for root in world.ranks:
        objects: list[Any] = [_of(root), "second"] if world.rank == root else [None, None]
        dist.broadcast_object_list(objects, src=root)
        assert objects == [_of(root), "second"]


@case
def send_and_receive_object_list(world: World) -> None:
    objects: list[Any] = [_of(7), torch.arange(3)] if world.rank == 0 else [None, None]
    if world.rank == 0:
        dist.send_object_list(objects, dst=1)
    elif world.rank == 1:
        assert dist.recv_object_list(objects, src=0) == 0
        assert objects[0] == _of(7)
        same(objects[1], torch.arange(3))
