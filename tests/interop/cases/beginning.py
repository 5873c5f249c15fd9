"""The end of a world and a new beginning, in the same processes."""

import os
from datetime import timedelta

import torch.distributed as dist
from tests.interop.world import Family, World, same

FAMILY = Family("beginning")  # played first, before anything could keep what the first world was held together by
ONCE_MORE = Family("beginning again")  # played last

case = FAMILY.case


@case
def the_end_and_a_new_beginning(world: World) -> None:
    _begin_anew(world)
    _begin_anew(world)


def after_all_the_others(world: World) -> None:
    """Meshes and groups that were never destroyed keep the store alive, with all that the first world wrote there."""
    _begin_anew(world)


ONCE_MORE.add("after all the others", after_all_the_others)


def _begin_anew(world: World) -> None:
    dist.barrier()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    dist.init_process_group(world.backend, timeout=timedelta(seconds=60))
    tensor = world.mine(4)
    dist.all_reduce(tensor)
    same(tensor, world.full(world.total, 4))


@case
def a_new_beginning_with_a_store_of_our_own(world: World) -> None:
    """Initialised without environment variables, as many programs do."""
    port = [0]
    if world.rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        port = [server.port]
    dist.broadcast_object_list(port, src=0)
    store = server if world.rank == 0 else dist.TCPStore("127.0.0.1", port[0], is_master=False)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group(world.backend, store=store, rank=world.rank, world_size=world.size)
    tensor = world.mine(4)
    dist.all_reduce(tensor)
    same(tensor, world.full(world.total, 4))
    dist.barrier()
    dist.destroy_process_group()
    assert os.environ["RANK"] == str(world.rank)
    dist.init_process_group(world.backend, timeout=timedelta(seconds=60))
    dist.barrier()
    del store  # not before everybody has left what it held together
