"""Creation of a process group: forms a ring from the store, rank, size and timeout that torch.distributed gives."""

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
    """Entry point for `init_process_group` and `new_group`; `config` is their `pg_options`."""
    return form(options.store, rank=options.group_rank, size=options.group_size, config=config, timeout=options.timeout)


def form(
    store: Store, *, rank: int, size: int, config: object = None, timeout: timedelta | None = None
) -> RingProcessGroup:
    """Find the other ranks through the store they share, and form a ring with them."""
    ours = _substore(store, rank)  # before anything can fail: a failed attempt counts too
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
    background_loop = background()
    membership = join(rank=rank, peers=found.peers, config=settings, listener=found.listener)
    ring = background_loop.enter(membership)
    ring.made_for(threading.current_thread())
    return RingProcessGroup(ring, membership, store, background_loop)


def _substore(store: Store, rank: int) -> Store:
    """Part of the store for one ring: a group that is destroyed and made again has the same store, with old addresses.

    Each rank counts its attempts in the store itself, so a restarted rank agrees with the others.
    """
    turn = store.add(f"ringwide/turns of rank {rank}", 1)
    return PrefixStore(f"ringwide/turn {turn}", store)


def _settings(config: object, timeout: timedelta | None) -> RingConfig:
    """Settings from `pg_options`, else from the environment.

    The timeout of torch is the deadline of collectives, even its default of half an hour: in scripts for other backends
    ranks wait for one that evaluates. Only a deadline named in our settings overrides that default.
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
    """Host of the store, if it has one: the route to it is also a route to the other ranks."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return getattr(store, "host", None)
