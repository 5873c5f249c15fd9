"""Room for every node in the cluster, spread over as many machines as there are, and given back however it ends."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ringwide.errors import JoinError
from ringwide.experiment.ray.cluster import cpus_of_nodes, free_cpus

SAY_AFTER_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Room:
    """One place in the cluster for each node."""

    group: Any  # Ray's placement group
    hosts: tuple[str, ...]  # the address of each node's Ray node, by rank


@asynccontextmanager
async def room_for(nodes: int, cpus: float, *, seconds: float, say: Callable[[str], None]) -> AsyncIterator[Room]:
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"CPU": cpus}] * nodes, strategy="SPREAD")
    try:
        await _ready(group, nodes, cpus, seconds, say)
        yield Room(group, _hosts(group, nodes))
    finally:
        remove_placement_group(group)


async def _ready(group: Any, nodes: int, cpus: float, seconds: float, say: Callable[[str], None]) -> None:
    ready = asyncio.ensure_future(_until(group))
    try:
        await asyncio.wait({ready}, timeout=min(SAY_AFTER_SECONDS, seconds))
        if not ready.done():
            say(f"waiting for the Ray cluster: {needed(nodes, cpus)}; {there_is(cpus_of_nodes(), free_cpus())}")
            await asyncio.wait({ready}, timeout=max(0.0, seconds - SAY_AFTER_SECONDS))
        if not ready.done():
            raise JoinError(
                f"the Ray cluster had no room within {seconds:g} s (start_timeout_seconds): {needed(nodes, cpus)};"
                f" {there_is(cpus_of_nodes(), free_cpus())}; wait for other jobs, add machines, or use fewer nodes"
            )
        ready.result()
    finally:
        ready.cancel()


async def _until(group: Any) -> None:
    await group.ready()


def needed(nodes: int, cpus: float) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''} with {cpus:g} CPU{'s' if cpus != 1 else ''} each"


def there_is(cpus: Sequence[float], free: float) -> str:
    nodes = f"{len(cpus)} Ray node{'s' if len(cpus) != 1 else ''}"
    return f"it has {sum(cpus):g} CPUs on {nodes} (at most {max(cpus, default=0):g} on one), {free:g} of them free"


def _hosts(group: Any, nodes: int) -> tuple[str, ...]:
    import ray
    from ray.util.placement_group import placement_group_table

    address_of = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    places = placement_group_table(group)["bundles_to_node_id"]
    return tuple(address_of[places[rank]] for rank in range(nodes))
