"""Connection to a running Ray cluster, and the reservation of CPUs on it for every node."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ringwide.bootstrap.peers import parse_address
from ringwide.errors import ConfigError, JoinError

VARIABLE = "RAY_ADDRESS"
AUTO = "auto"
PROBE_SECONDS = 10.0
START = "start one with `ray start --head`, and `ray start --address HOST:6379` on the other machines"


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to the cluster at `address`; by default to that of RAY_ADDRESS, or the one this machine belongs to."""
    where, origin = _named(address)
    require_ray()
    import ray

    _probe(where, origin)
    try:
        # Keep Ray's log and the output of its workers out of ours.
        ray.init(address=where, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise _unreachable(where, origin, str(error).partition("\n")[0]) from error
    try:
        yield
    finally:
        ray.shutdown()


def require_ray() -> None:
    if find_spec("ray") is None:
        raise ConfigError("--on ray: the package ray is not installed; install it with pip install 'ringwide[ray]'")


def cpus_of_nodes() -> list[float]:
    """CPUs of each Ray node that is alive."""
    import ray

    return [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]


def free_cpus() -> float:
    import ray

    free: float = ray.available_resources().get("CPU", 0.0)
    return free


def _named(address: str | None) -> tuple[str, str]:
    """Address of the cluster, and the option or variable that named it."""
    where, origin = address, "--address"
    if where is None:
        where, origin = os.environ.get(VARIABLE) or AUTO, VARIABLE
    if where == "local":
        raise ConfigError(f"{origin}: local: without --on ray all nodes run on this machine; or name a cluster")
    if "://" in where:
        raise ConfigError(
            f"{origin}: {where}: the launcher must run inside the cluster: start it on one of its machines, by hand or"
            f" through `ray job submit`, with HOST:PORT of the head node or {AUTO}"
        )
    if where != AUTO:
        parse_address(where, origin)
    return where, origin


def _probe(where: str, origin: str) -> None:
    """Fail at once if nothing listens there: Ray itself would try for minutes."""
    if where == AUTO:
        return
    address = parse_address(where, origin)
    try:
        socket.create_connection((address.host, address.port), timeout=PROBE_SECONDS).close()
    except OSError as error:
        raise _unreachable(where, origin, str(error.strerror or error)) from error


def _unreachable(where: str, origin: str, problem: str) -> JoinError:
    if where == AUTO:
        return JoinError(
            f"--on ray: this machine belongs to no Ray cluster, and {VARIABLE} names none: {START}; or name its"
            f" head node with --address HOST:PORT ({problem})"
        )
    return JoinError(f"{origin}: {where}: no Ray cluster answers there: {problem}; {START}")


# -- reservation

SAY_AFTER_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """CPUs reserved for each node."""

    group: Any  # Ray's placement group
    hosts: tuple[str, ...]  # the address of each node's Ray node, by rank


@asynccontextmanager
async def reserved(
    nodes: int, cpus: float, *, seconds: float, say: Callable[[str], None]
) -> AsyncIterator[Reservation]:
    """Reserve `cpus` for each node, spread over the machines, for the length of the block."""
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"CPU": cpus}] * nodes, strategy="SPREAD")
    try:
        await _ready(group, nodes, cpus, seconds, say)
        yield Reservation(group, _hosts_of(group, nodes))
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


def _hosts_of(group: Any, nodes: int) -> tuple[str, ...]:
    import ray
    from ray.util.placement_group import placement_group_table

    address_of = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    places = placement_group_table(group)["bundles_to_node_id"]
    return tuple(address_of[places[rank]] for rank in range(nodes))
