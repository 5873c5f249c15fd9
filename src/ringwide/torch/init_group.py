"""From what torch.distributed knows of a group (its store, rank, size, time-out) to a ring that has formed."""

import os
import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ringwide.bootstrap.rendezvous import find_peers
from ringwide.config.ring_config import RingConfig, from_environment
from ringwide.errors import ConfigError
from ringwide.ring import join
from ringwide.runtime.background_loop import background
from ringwide.torch.process_group import RingProcessGroup


def create(options: Any, config: object) -> RingProcessGroup:
    """What `init_process_group` and `new_group` call; `config` is their `pg_options`."""
    return form(options.store, rank=options.group_rank, size=options.group_size, config=config, timeout=options.timeout)


def form(
    store: Store, *, rank: int, size: int, config: object = None, timeout: timedelta | None = None
) -> RingProcessGroup:
    """Meet the other ranks by the store, which all of them have, and form a ring with them."""
    ours = _part_for_one_ring(store, rank)  # before anything can fail: it is a turn all the same
    settings = _settings(config, timeout)
    found = find_peers(
        ours,
        rank=rank,
        size=size,
        host=os.environ.get("RINGWIDE_HOST"),
        protected=settings.load_protection().will_do_beyond_loopback,
        towards=_host_of(store),
        timeout_seconds=settings.start_timeout_seconds,
    )
    behind = background()
    membership = join(rank=rank, peers=found.peers, config=settings, listener=found.listener)
    ring = behind.enter(membership)
    ring.made_for(threading.current_thread())
    return RingProcessGroup(ring, membership, store, behind)


def _part_for_one_ring(store: Store, rank: int) -> Store:
    """A group that was destroyed and is made again has the same store, which still knows where the first one listened.

    Each rank counts its turns in the store itself, so one that was started anew meets the others all the same.
    """
    turn = store.add(f"ringwide/turns of rank {rank}", 1)
    return PrefixStore(f"ringwide/turn {turn}", store)


def _settings(config: object, timeout: timedelta | None) -> RingConfig:
    """Those of `pg_options`, else of the environment.

    The time-out of torch is the deadline, also the half hour that it has by itself: in scripts for other backends ranks
    wait for one that evaluates. Only a deadline that our settings name is worth more than that half hour.
    """
    if config is None:
        config = from_environment(os.environ)
    if not isinstance(config, RingConfig):
        raise ConfigError(f"pg_options is a {type(config).__name__}; the backend ringwide takes a ringwide.RingConfig")
    chosen: dict[str, Any] = {"messages": True}
    ours = "collective_timeout_seconds" in config.model_fields_set
    if timeout is not None and not (ours and timeout == dist.default_pg_timeout):
        chosen["collective_timeout_seconds"] = timeout.total_seconds()
    return config.model_copy(update=chosen)


def _host_of(store: Store) -> str | None:
    """Where the store lives, if it lives on one machine: from there the other ranks can be reached as well."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return getattr(store, "host", None)
