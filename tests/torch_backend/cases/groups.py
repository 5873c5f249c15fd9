"""Groups: parts of the world, several at a time, meshes, barriers."""

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch_backend.world import Family, World, group_of, same
from torch.distributed.device_mesh import init_device_mesh

FAMILY = Family("groups")
case = FAMILY.case


@case
def who_we_are(world: World) -> None:
    assert dist.get_backend() == world.backend
    assert (dist.get_rank(), dist.get_world_size()) == (world.rank, world.size)
    assert dist.get_process_group_ranks(None) == list(world.ranks)


@case
def barrier(world: World) -> None:
    dist.barrier()
    work = dist.barrier(async_op=True)
    assert work is not None
    work.wait()


@case
def barrier_waits_for_all(world: World) -> None:
    """What the last rank wrote before it came is there for all after it."""
    store = dist.distributed_c10d._get_default_store()
    if world.rank == world.size - 1:
        store.set("the last is here", "yes")
    dist.barrier()
    assert store.check(["the last is here"])
    dist.barrier()
    store.delete_key("the last is here")


@case
def monitored_barrier(world: World) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=30))


@case
def monitored_barrier_of_the_group(world: World) -> None:
    group: Any = dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=30))
    group.monitored_barrier(timedelta(seconds=30), wait_all_ranks=True)


@case
def monitored_barrier_without_the_last_rank(world: World) -> None:
    with group_of(list(world.ranks)) as made:
        group: Any = made
        if world.rank == 0:
            with pytest.raises(RuntimeError, match=f"Ranks {world.size - 1} failed to pass monitoredBarrier in 500 ms"):
                group.monitored_barrier(timedelta(seconds=0.5), wait_all_ranks=True)
        elif world.rank < world.size - 1:
            with pytest.raises(RuntimeError, match=f"Rank {world.rank} successfully reached monitoredBarrier, but"):
                group.monitored_barrier(timedelta(seconds=1))
        dist.barrier()


@case
def timeout_of_a_group_that_is_there(world: World) -> None:
    with group_of(list(world.ranks)) as group:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.4), group)
        backend: Any = group._get_backend(torch.device("cpu"))
        assert backend.options._timeout == timedelta(seconds=0.4)
        if world.rank == 0:
            with pytest.raises(RuntimeError, match=r" (Timed out|closed|timeout) "):
                dist.barrier(group)
        dist.barrier()


@case
def number_of_collectives(world: World) -> None:
    group: Any = dist.group.WORLD
    before = group._get_sequence_number_for_group()
    dist.all_reduce(world.mine(4))
    assert group._get_sequence_number_for_group() == before + 1


@case
def a_group_of_all(world: World) -> None:
    with group_of(list(world.ranks)) as group:
        tensor = world.mine(4)
        dist.all_reduce(tensor, group=group)
        same(tensor, world.full(world.total, 4))


@case
def a_group_of_one(world: World) -> None:
    groups = [dist.new_group([rank]) for rank in world.ranks]
    group = groups[world.rank]
    tensor = world.mine(4)
    dist.all_reduce(tensor, group=group)
    dist.broadcast(tensor, world.rank, group=group)
    same(tensor, world.mine(4))
    found = [world.full(-1, 4)]
    dist.all_gather(found, tensor, group=group)
    same(found[0], world.mine(4))
    part = world.full(-1, 4)
    dist.reduce_scatter_tensor(part, tensor, group=group)
    same(part, world.mine(4))
    dist.barrier(group=group)
    dist.destroy_process_group(group)


@case
def a_group_without_rank_0(world: World) -> None:
    ranks = list(range(1, world.size))
    with group_of(ranks) as group:
        if world.rank == 0:
            return
        tensor = world.mine(4)
        dist.all_reduce(tensor, group=group)
        same(tensor, world.full(world.total - 1, 4))


@case
def ranks_of_a_group_and_of_the_world(world: World) -> None:
    ranks = [0, world.size - 1]
    with group_of(ranks) as group:
        if world.rank not in ranks:
            assert dist.get_rank(group) == -1
            return
        assert dist.get_rank(group) == ranks.index(world.rank)
        assert dist.get_global_rank(group, 1) == world.size - 1
        assert dist.get_group_rank(group, world.size - 1) == 1
        tensor = world.mine(4)
        dist.broadcast(tensor, src=world.size - 1, group=group)  # the root is a rank of the world
        same(tensor, world.full(world.size, 4))
        found = [world.full(-1, 4) for _ in ranks] if world.rank == world.size - 1 else None
        dist.gather(world.mine(4), found, dst=world.size - 1, group=group)
        if found is not None:
            same(torch.stack(found), torch.stack([world.full(rank + 1, 4) for rank in ranks]))


@case
def groups_that_overlap_at_the_same_time(world: World) -> None:
    """Every pair of neighbours is a group; all of them and the world are busy at once."""
    pairs = [sorted({rank, (rank + 1) % world.size}) for rank in world.ranks]
    groups = [dist.new_group(pair) for pair in pairs]
    jobs = [(world.mine(3000), world.total, dist.group.WORLD)]
    jobs += [
        (world.mine(3000), sum(pair) + len(pair), group)
        for pair, group in zip(pairs, groups, strict=True)
        if world.rank in pair
    ]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, _, group in jobs]
    for work in reversed(works):
        assert work is not None
        work.wait()
    for tensor, total, _ in jobs:
        same(tensor, world.full(total, 3000))
    for pair, group in zip(pairs, groups, strict=True):
        if world.rank in pair:
            dist.destroy_process_group(group)


@case
def threads_with_a_group_and_a_name_each(world: World) -> None:
    """A rank has threads only for the groups that it is in, and starts them in an order of its own."""
    lists = {"first": list(world.ranks), "second": [0, world.size - 1], "third": list(world.ranks)[1:]}
    groups = {name: dist.new_group(ranks) for name, ranks in lists.items()}
    mine = [name for name, ranks in lists.items() if world.rank in ranks]
    found = {name: [world.mine(size) for size in (4, 300_000)] for name in mine}

    def work(name: str) -> None:
        for tensor in found[name]:
            dist.all_reduce(tensor, group=groups[name])

    threads = [threading.Thread(target=work, args=(name,), name=name) for name in mine]
    for thread in threads[:: 1 if world.rank % 2 else -1]:
        thread.start()
    for thread in threads:
        thread.join()
    for name in mine:
        for tensor in found[name]:
            same(tensor, world.full(sum(lists[name]) + len(lists[name]), *tensor.shape))
    dist.barrier()  # with gloo, a rank that destroys a group breaks the connections that another still uses
    for name in mine:
        dist.destroy_process_group(groups[name])


@case
def the_same_ranks_in_two_groups_do_not_meet(world: World) -> None:
    """Each rank's order of calls differs between the groups: only within a group must it be the same."""
    first, second = dist.new_group(), dist.new_group()
    sums, products = world.mine(10), world.mine(10)
    calls = [(sums, dist.ReduceOp.SUM, first), (products, dist.ReduceOp.MAX, second)]
    order = calls if world.rank % 2 == 0 else calls[::-1]
    works = [dist.all_reduce(tensor, operation, group=group, async_op=True) for tensor, operation, group in order]
    for work in works:
        assert work is not None
        work.wait()
    same(sums, world.full(world.total, 10))
    same(products, world.full(world.size, 10))
    dist.destroy_process_group(first)
    dist.destroy_process_group(second)


@case
def groups_by_enumeration(world: World) -> None:
    group, groups = dist.new_subgroups_by_enumeration([[rank] for rank in world.ranks])
    assert len(groups) == world.size
    tensor = world.mine(3)
    dist.all_reduce(tensor, group=group)
    same(tensor, world.mine(3))
    dist.destroy_process_group(group)


@case
def a_group_with_a_barrier_of_its_own(world: World) -> None:
    group = dist.new_group(list(world.ranks), use_local_synchronization=False, group_desc="ours")
    dist.barrier(group=group)
    assert group.group_desc == "ours"
    dist.destroy_process_group(group)


@case
def mesh_of_one_dimension(world: World) -> None:
    mesh = init_device_mesh("cpu", (world.size,), mesh_dim_names=("all",))
    tensor = world.mine(4)
    dist.all_reduce(tensor, group=mesh.get_group())
    same(tensor, world.full(world.total, 4))
    assert mesh["all"].get_local_rank() == world.rank


@case
def mesh_of_two_dimensions(world: World) -> None:
    for shape in ((world.size, 1), (1, world.size)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("rows", "columns"))
        for name, length in zip(("rows", "columns"), shape, strict=True):
            tensor = world.mine(4)
            dist.all_reduce(tensor, group=mesh.get_group(name))
            same(tensor, world.mine(4) if length == 1 else world.full(world.total, 4))


@case
def tensors_distributed_over_a_mesh(world: World) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world.size,))
    whole = torch.arange(4.0 * world.size * 3).reshape(-1, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert sharded.to_local().shape == (4, 3)
    same(sharded.full_tensor(), whole)
    same(sharded.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()]).to_local(), whole)
    same((sharded @ sharded.t()).full_tensor(), whole @ whole.t())  # type: ignore[attr-defined]


@case
def a_new_group_after_one_was_destroyed(world: World) -> None:
    for _ in range(3):
        with group_of(list(world.ranks)) as group:
            dist.barrier(group=group)
