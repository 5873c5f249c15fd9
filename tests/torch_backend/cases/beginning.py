"""The end of a world and a new beginning, in the same processes."""

import gc
import os
import random
from datetime import timedelta

import torch.distributed as dist
from tests.torch_backend.world import Family, World, same

from ringwide.bootstrap.rendezvous import LOOPBACK
from ringwide.experiment.find_peers import free_ports

FAMILY = Family("beginning")
ONCE_MORE = Family("beginning again")  # played last, when much has been made that was never destroyed
case = FAMILY.case

PATIENCE = timedelta(minutes=10)


@case
def the_end_and_a_new_beginning(world: World) -> None:
    for _ in range(2):
        _meet_elsewhere(world)
        _end()
        dist.init_process_group(world.backend, timeout=PATIENCE)
        _check(world)


ONCE_MORE.add("after all the others", the_end_and_a_new_beginning)


@case
def a_new_beginning_with_a_store_of_our_own(world: World) -> None:
    _with_own_store(world, times=1)


@case
def several_beginnings_with_the_same_store(world: World) -> None:
    """What the first world wrote there is still there. With torchrun it is so whenever a world begins anew."""
    _with_own_store(world, times=3)


def _with_own_store(world: World, *, times: int) -> None:
    """Initialised without environment variables, as many programs do."""
    port = [0]
    if world.rank == 0:
        server = dist.TCPStore(LOOPBACK, 0, None, is_master=True, wait_for_workers=False)
        port = [server.port]
    dist.broadcast_object_list(port, src=0)
    store = server if world.rank == 0 else dist.TCPStore(LOOPBACK, port[0], is_master=False)
    _meet_elsewhere(world)
    for _ in range(times):
        _end()
        dist.init_process_group(world.backend, store=store, rank=world.rank, world_size=world.size, timeout=PATIENCE)
        _check(world)
    _end()
    dist.init_process_group(world.backend, timeout=PATIENCE)
    _check(world)
    del store  # not before everybody has left what it held together


@case
def a_group_beside_another_backend_while_a_rank_still_refers_to_the_old_world(world: World) -> None:
    old = dist.group.WORLD if world.rank == 0 else None
    _meet_elsewhere(world)
    _end()
    gc.collect()
    dist.init_process_group("gloo", timeout=PATIENCE)
    group = dist.new_group(backend=world.backend, timeout=timedelta(seconds=30))
    _check(world, group)
    _meet_elsewhere(world)
    _end()
    dist.init_process_group(world.backend, timeout=PATIENCE)
    _check(world)
    del old


def _meet_elsewhere(world: World) -> None:
    """The store of the old world ends with rank 0's part in it: who was faster would find it, and be cut off."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return  # torchrun's own, which stays
    port = free_ports(1, random.Random()) if world.rank == 0 else [0]
    dist.broadcast_object_list(port, src=0)
    os.environ["MASTER_PORT"] = str(port[0])


def _end() -> None:
    dist.barrier()
    dist.destroy_process_group()
    assert not dist.is_initialized()


def _check(world: World, group: dist.ProcessGroup | None = None) -> None:
    tensor = world.mine(4)
    dist.all_reduce(tensor, group=group)
    same(tensor, world.full(world.total, 4))
