"""Creation of a process group: forms a ring from the store, rank, size and timeout that torch.distributed gives."""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ringwide.bootstrap.launcher_env import find_run_id
from ringwide.bootstrap.rendezvous import StoreBoard, find_peers
from ringwide.config.ring_config import RingConfig, from_environment
from ringwide.errors import ConfigError, Disagreement, JoinError
from ringwide.ring import Ring, join, join_subgroup
from ringwide.runtime.background_loop import background
from ringwide.torch.process_group import RingProcessGroup

_OF_CONNECTIONS = (
    *("segment_bytes", "buffer_bytes", "lanes", "messages", "codec_threads", "suspect_after_seconds", "checksum"),
    *("keepalive_seconds", "user_timeout_seconds", "listen", "same_host", "run_id", "key_file", "encrypt", "tls"),
    "insecure",
)
"""Settings that groups have in common which share connections."""
_EPOCHS = "ringwide/subgroups"


def create(options: Any, config: object) -> RingProcessGroup:
    """Entry point for `init_process_group` and `new_group`; `config` is their `pg_options`."""
    ranks: list[int] = list(options.global_ranks_in_group)  # none: the default group
    world = dist.group.WORLD  # now, and on all ranks: an earlier one may still be referred to on some of them
    return form(
        options.store,
        rank=options.group_rank,
        size=options.group_size,
        config=config,
        timeout=options.timeout,
        world=world if ranks and isinstance(world, RingProcessGroup) else None,
        ranks=ranks,
    )


def form(
    store: Store,
    *,
    rank: int,
    size: int,
    config: object = None,
    timeout: timedelta | None = None,
    world: RingProcessGroup | None = None,
    ranks: Sequence[int] = (),
) -> RingProcessGroup:
    """Find the other ranks through the store they share, and form a ring with them.

    It is a subgroup of `world`, whose `ranks` it has, if all of them can make it one. Else it has connections of its
    own.
    """
    ours = _substore(store, rank)  # before anything can fail: a failed attempt counts too
    settings = _settings(config, timeout, None if world is None else world.ring.config)
    background_loop = background()
    epoch = None if world is None else _shared_epoch(ours, world, settings, rank=rank, size=size)
    if world is not None and epoch is not None:
        membership = join_subgroup(world.ring, ranks, epoch=epoch, config=settings)
    else:
        membership = _own_ring(store, ours, settings, rank=rank, size=size)
    ring = background_loop.enter(membership)
    ring.made_for(threading.current_thread())
    return RingProcessGroup(ring, membership, ours, background_loop)


def _own_ring(
    store: Store, ours: Store, settings: RingConfig, *, rank: int, size: int
) -> AbstractAsyncContextManager[Ring]:
    found = find_peers(
        ours,
        rank=rank,
        size=size,
        host=os.environ.get("RINGWIDE_HOST"),
        protected=settings.load_protection().will_do_beyond_loopback,
        towards=_host_of(store),
        timeout_seconds=settings.start_timeout_seconds,
    )
    return join(rank=rank, peers=found.peers, config=settings, listener=found.listener)


def _shared_epoch(ours: Store, world: RingProcessGroup, settings: RingConfig, *, rank: int, size: int) -> int | None:
    """Epoch of a subgroup of the world's ring, the same for all its ranks. None: some of them cannot share it.

    A rank whose ring is over, or whose settings need other connections, says so, and all make a ring of their own.
    """
    board = StoreBoard(ours, rank=rank, size=size, timeout_seconds=settings.start_timeout_seconds)
    shares = world.ring.is_open and _of_connections(settings) == _of_connections(world.ring.config)
    epoch = world.get_group_store().add(_EPOCHS, 1) if rank == 0 else 0
    board.write("subgroup", json.dumps({"shares": shares, "epoch": epoch, "settings": settings.compared()}))
    lines = [_parsed(line) for line in board.read("subgroup")]
    if not all(line["shares"] for line in lines):
        return None
    _require_same_settings([line["settings"] for line in lines], rank)
    return int(lines[0]["epoch"])


def _parsed(line: str) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = json.loads(line)
        if isinstance(parsed["epoch"], int) and isinstance(parsed["settings"], dict) and "shares" in parsed:
            return parsed
    except (ValueError, KeyError, TypeError):
        pass
    raise JoinError(f"the store has {line!r}, which no rank of a subgroup writes")


def _require_same_settings(settings: Sequence[Mapping[str, object]], rank: int) -> None:
    """All ranks have read the same, so either all fail or none."""
    for peer, theirs in enumerate(settings):
        for field, value in settings[rank].items():
            if theirs.get(field) != value:
                raise Disagreement(field=field, ours=value, theirs=theirs.get(field), rank=rank, peer=f"rank {peer}")


def _substore(store: Store, rank: int) -> Store:
    """Part of the store for one ring: a group that is destroyed and made again has the same store, with old addresses
    and the notes of old barriers.

    Each rank counts its attempts in the store itself, so a restarted rank agrees with the others.
    """
    turn = store.add(f"ringwide/turns of rank {rank}", 1)
    return PrefixStore(f"ringwide/turn {turn}", store)


def _settings(config: object, timeout: timedelta | None, world: RingConfig | None = None) -> RingConfig:
    """Settings from `pg_options`, else from the environment; then what concerns connections is that of the world.

    The timeout of torch is the deadline of collectives and of forming, even its default of half an hour: in scripts for
    other backends ranks wait for one that evaluates. Only a deadline named in our settings overrides that default.
    """
    inherited = {}
    if config is None:
        config = from_environment(os.environ)
        inherited = {} if world is None else _of_connections(world)
    if not isinstance(config, RingConfig):
        raise ConfigError(f"pg_options is a {type(config).__name__}; the backend ringwide takes a ringwide.RingConfig")
    chosen: dict[str, Any] = {"messages": True, "run_id": config.run_id or find_run_id(os.environ), **inherited}
    for deadline in ("collective_timeout_seconds", "start_timeout_seconds"):
        ours = deadline in config.model_fields_set
        if timeout is not None and not (ours and timeout == dist.default_pg_timeout):
            chosen[deadline] = timeout.total_seconds()
    return config.model_copy(update=chosen)


def _of_connections(config: RingConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in _OF_CONNECTIONS}


def _host_of(store: Store) -> str | None:
    """Host of the store, if it has one: the route to it is also a route to the other ranks."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return getattr(store, "host", None)
