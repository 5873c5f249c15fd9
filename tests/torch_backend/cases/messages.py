"""send and recv, from one rank to another."""

import torch
import torch.distributed as dist
from tests.torch_backend.cases.numbers import DTYPES, brought_by, name_of
from tests.torch_backend.world import Family, World, same

FAMILY = Family("messages")
case = FAMILY.case


def _round_the_ring(world: World, dtype: torch.dtype) -> None:
    successor, predecessor = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    received = torch.zeros_like(brought_by(0, dtype))
    work = dist.isend(brought_by(world.rank, dtype).to(world.device), successor)
    assert work is not None
    dist.recv(received, predecessor)
    work.wait()
    same(received, brought_by(predecessor, dtype))


for _dtype in DTYPES:
    FAMILY.add(f"round the ring {name_of(_dtype)}", lambda world, dtype=_dtype: _round_the_ring(world, dtype))  # type: ignore[misc]


@case
def send_and_recv(world: World) -> None:
    tensor = world.mine(3, 4)
    if world.rank == 0:
        dist.send(tensor, 1)
    elif world.rank == 1:
        assert dist.recv(tensor, 0) == 0
        same(tensor, world.full(1, 3, 4))


@case
def isend_and_irecv_both_ways_at_once(world: World) -> None:
    if world.rank > 1:
        return
    other = 1 - world.rank
    received = world.full(-1, 100_000)
    works = [dist.irecv(received, other), dist.isend(world.mine(100_000), other)]
    for work in works:
        assert work is not None
        work.wait()
    same(received, world.full(other + 1, 100_000))


@case
def several_messages_arrive_in_order(world: World) -> None:
    for number in range(5):
        if world.rank == 0:
            dist.send(world.full(number, 6), 1)
        elif world.rank == 1:
            received = world.full(-1, 6)
            dist.recv(received, 0)
            same(received, world.full(number, 6))


@case
def tags_out_of_order(world: World) -> None:
    if world.rank == 0:
        works = [dist.isend(world.full(tag, 4), 1, tag=tag) for tag in (1, 2, 3)]
        for work in works:
            assert work is not None
            work.wait()
    elif world.rank == 1:
        for tag in (3, 1, 2):
            received = world.full(-1, 4)
            dist.recv(received, 0, tag=tag)
            same(received, world.full(tag, 4))


@case
def irecv_before_anything_is_sent(world: World) -> None:
    received = {tag: world.full(-1, 4) for tag in (1, 2)}
    if world.rank == 1:
        works = [dist.irecv(received[tag], 0, tag=tag) for tag in (2, 1)]
    dist.barrier()
    if world.rank == 0:
        dist.send(world.full(1, 4), 1, tag=1)
        dist.send(world.full(2, 4), 1, tag=2)
    elif world.rank == 1:
        for work in works:
            assert work is not None
            work.wait()
        for tag, tensor in received.items():
            same(tensor, world.full(tag, 4))


@case
def recv_from_any_source(world: World) -> None:
    if world.rank:
        dist.send(world.full(world.rank, 3), 0)
        return
    sources = []
    for _ in range(world.size - 1):
        received = world.full(-1, 3)
        source = dist.recv(received)
        same(received, world.full(source, 3))
        sources.append(source)
    assert sorted(sources) == list(range(1, world.size))


@case
def recv_from_any_source_with_a_tag(world: World) -> None:
    if world.rank:
        dist.send(world.full(world.rank, 3), 0, tag=world.rank)
        return
    for tag in range(world.size - 1, 0, -1):
        received = world.full(-1, 3)
        assert dist.recv(received, tag=tag) == tag
        same(received, world.full(tag, 3))


@case
def batch_of_sends_and_receives(world: World) -> None:
    successor, predecessor = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    received = world.full(-1, 1000)
    batch = [
        dist.P2POp(dist.isend, world.mine(1000), successor),
        dist.P2POp(dist.irecv, received, predecessor),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    same(received, world.full(predecessor + 1, 1000))


@case
def messages_between_collectives(world: World) -> None:
    """Two ranks talk while all of them add: neither disturbs the other."""
    tensor = world.mine(50_000)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    if world.rank == 0:
        dist.send(world.full(5, 10), 1)
    elif world.rank == 1:
        received = world.full(-1, 10)
        dist.recv(received, 0)
        same(received, world.full(5, 10))
    work.wait()
    same(tensor, world.full(world.total, 50_000))


@case
def recv_into_a_tensor_of_nothing(world: World) -> None:
    if world.rank == 0:
        dist.send(world.full(0, 0), 1)
    elif world.rank == 1:
        assert dist.recv(world.full(0, 0), 0) == 0


@case
def send_and_recv_by_rank_of_a_group(world: World) -> None:
    last = world.size - 1
    group = dist.new_group([0, last])
    tensor = world.mine(4)
    if world.rank == 0:
        dist.send(tensor, group=group, group_dst=1)
    elif world.rank == last:
        assert dist.recv(tensor, group=group, group_src=0) == 0
        same(tensor, world.full(1, 4))
    if world.rank in (0, last):
        dist.destroy_process_group(group)
