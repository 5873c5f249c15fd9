"""Work in the background: what can be asked of it, in which order it may be waited for, futures."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from tests.torch_backend.world import Family, World, same

FAMILY = Family("waiting")
case = FAMILY.case


def _begun(world: World, count: int = 16) -> tuple[torch.Tensor, dist.Work]:
    tensor = world.mine(count)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return tensor, work


@case
def work_that_is_done_says_so(world: World) -> None:
    tensor, work = _begun(world)
    assert work.wait() is True
    assert work.is_completed() is True
    assert work.is_success() is True
    assert work.exception() is None
    same(tensor, world.full(world.total, 16))


@case
def work_can_be_waited_for_twice(world: World) -> None:
    tensor, work = _begun(world)
    work.wait()
    work.wait()
    same(tensor, world.full(world.total, 16))


@case
def work_is_done_without_being_waited_for(world: World) -> None:
    tensor, work = _begun(world)
    while not work.is_completed():  # the watchdog has a deadline
        time.sleep(0.001)
    same(tensor, world.full(world.total, 16))


@case
def many_works_are_waited_for_in_any_order(world: World) -> None:
    begun = [_begun(world, count=count) for count in range(1, 40)]
    order = begun[::2][::-1] + begun[1::2] if world.rank == 0 else begun[::-1]
    for tensor, work in order:
        work.wait()
        same(tensor, world.full(world.total, *tensor.shape))


@case
def a_hundred_works_of_several_kinds(world: World) -> None:
    """More than a ring keeps open at a time."""
    sums = [world.mine(10) for _ in range(100)]
    roots = [world.mine(10) for _ in range(100)]
    works = []
    for number, (ours, root) in enumerate(zip(sums, roots, strict=True)):
        works.append(dist.all_reduce(ours, async_op=True))
        works.append(dist.broadcast(root, number % world.size, async_op=True))
    for work in reversed(works):
        assert work is not None
        work.wait()
    for number, (ours, root) in enumerate(zip(sums, roots, strict=True)):
        same(ours, world.full(world.total, 10))
        same(root, world.full(number % world.size + 1, 10))


@case
def wait_with_a_timeout_that_is_long_enough(world: World) -> None:
    tensor, work = _begun(world)
    work.wait(timedelta(seconds=50))
    same(tensor, world.full(world.total, 16))


@case
def future_of_a_work(world: World) -> None:
    _, work = _begun(world)
    value = work.get_future().wait()
    (found,) = value if isinstance(value, list) else [value]
    same(found, world.full(world.total, 16))


@case
def then_of_a_future(world: World) -> None:
    tensor, work = _begun(world)

    def halved(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        (found,) = future.value()
        return found / 2

    same(work.get_future().then(halved).wait(), world.full(world.total / 2, 16))
    same(tensor, world.full(world.total, 16))


@case
def then_of_a_future_that_is_done(world: World) -> None:
    _, work = _begun(world)
    work.wait()
    assert work.get_future().then(lambda future: len(future.value())).wait() == 1


@case
def an_error_in_then_reaches_who_waits(world: World) -> None:
    _, work = _begun(world)

    def fails(future: object) -> None:
        raise ValueError("on purpose")

    with pytest.raises((ValueError, RuntimeError), match="on purpose"):
        work.get_future().then(fails).wait()


@case
def futures_of_several_works_together(world: World) -> None:
    begun = [_begun(world) for _ in range(5)]
    torch.futures.wait_all([work.get_future() for _, work in begun])
    for tensor, _ in begun:
        same(tensor, world.full(world.total, 16))


@case
def the_tensor_may_be_forgotten_while_it_travels(world: World) -> None:
    works = [dist.all_reduce(world.mine(200_000), async_op=True) for _ in range(3)]
    for work in works:
        assert work is not None
        (found,) = work.get_future().wait()
        same(found[:3], world.full(world.total, 3))


@case
def the_work_may_be_forgotten_while_it_travels(world: World) -> None:
    tensor = world.mine(200_000)
    dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    second = world.mine(3)
    dist.all_reduce(second)
    same(second, world.full(world.total, 3))


@case
def source_rank_of_an_irecv(world: World) -> None:
    if world.rank == 1:
        dist.send(world.full(4, 2), 0)
    elif world.rank == 0:
        work = dist.irecv(world.full(-1, 2))
        assert work is not None
        work.wait()
        assert work._source_rank() == 1
