"""Host of nodes on a Ray cluster: one actor per node, a `Keeper`, which runs the node as its child process.

The launcher inspects every keeper's machine, lets each keeper listen, and then tells all of them the addresses. Actors
and their reservation belong to the launcher's Ray job: if it dies, Ray ends the actors, and their nodes die with them.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringwide.bootstrap.protection import new_key
from ringwide.errors import ConfigError, JoinError
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.fleet import Exit, ProcessOutput
from ringwide.experiment.launch import Launch
from ringwide.experiment.ray.cluster import Reservation, connected, reserved
from ringwide.experiment.ray.keeper import (
    EXPERIMENT,
    OUR_VARIABLES,
    POLL_SECONDS,
    Keeper,
    NewOutput,
    NodeEnvironment,
    Order,
    our_version,
)

LOOPBACK = "127.0.0.1"
END_SECONDS = 5.0
MOST_CPUS = 1024

ANSWER_SECONDS = 60.0
"""A keeper whose answer is this much overdue is lost. Ray itself often knows earlier."""


@dataclass(frozen=True, slots=True)
class RemoteStart:
    """Start of one node by its keeper."""

    keeper: Any  # the handle of an actor that is a Keeper
    order: Order
    host: str
    directory: Path  # of the run, here
    fetches_log: bool  # the node's log file would otherwise be lost with its scratch directory
    seconds: float

    async def start(self, rank: int, on_line: Callable[[str], None]) -> "RemoteNode":
        await answer(self.keeper.start.remote(self.order), f"node {rank} on {self.host}", "start", self.seconds)
        return RemoteNode(rank, self, on_line)


class RemoteNode:
    """Node on a Ray node, polled through its keeper."""

    def __init__(self, rank: int, start: RemoteStart, on_line: Callable[[str], None]) -> None:
        self.rank = rank
        self._start, self._keeper = start, start.keeper
        self._errors = ProcessOutput(start.directory / f"node-{rank}.stderr.log")
        self._ended = asyncio.ensure_future(self._watch(on_line))

    @property
    def ended(self) -> "asyncio.Future[Exit]":
        return self._ended

    def signal(self, number: int) -> None:
        if not self._ended.done():
            self._keeper.signal.remote(number)  # no answer needed: the node ends

    async def _watch(self, on_line: Callable[[str], None]) -> Exit:
        from ray.exceptions import RayError

        try:
            while (code := self._pass_on(await self._poll(), on_line)) is None:
                pass
            if self._start.fetches_log:
                await self._fetch_log()
            return self._exit(code)
        except RayError as error:
            return self._exit(-signal.SIGKILL, f"was lost with its Ray actor: {why(error)}")
        except TimeoutError:
            return self._exit(-signal.SIGKILL, f"was lost: its Ray actor has not answered for {ANSWER_SECONDS:g} s")
        except Exception:
            self._keeper.signal.remote(signal.SIGKILL)  # nobody reads its output any more
            raise

    async def _poll(self) -> NewOutput:
        async with asyncio.timeout(POLL_SECONDS + ANSWER_SECONDS):
            new: NewOutput = await self._keeper.poll.remote()
            return new

    def _pass_on(self, new: NewOutput, on_line: Callable[[str], None]) -> int | None:
        for line in new.output:
            on_line(line)
        for line in new.errors:
            self._errors(line)
        return new.code

    async def _fetch_log(self) -> None:
        with suppress(OSError), (self._start.directory / f"node-{self.rank}.log").open("wb") as log:
            async with asyncio.timeout(ANSWER_SECONDS):
                while chunk := await self._keeper.log.remote(log.tell()):
                    log.write(chunk)

    def _exit(self, code: int, description: str = "") -> Exit:
        return Exit(self.rank, code, tuple(self._errors.last), self._start.host, description)


# -- all nodes on the cluster


@contextmanager
def on_ray(address: str | None, cpus_per_node: int | None) -> Iterator["OnRay"]:
    cpus = 1 if cpus_per_node is None else cpus_per_node
    if not 1 <= cpus <= MOST_CPUS:
        raise ConfigError(f"--cpus-per-node {cpus}: out of range; choose from 1 to {MOST_CPUS}")
    with connected(address):
        yield OnRay(cpus)


class OnRay:
    """`NodeHost` for a Ray cluster."""

    patience_seconds = 30.0  # Ray needs a while to be sure that a machine is gone

    def __init__(self, cpus_per_node: int) -> None:
        self._cpus = cpus_per_node

    @asynccontextmanager
    async def starts(
        self, launch: Launch, config: ExperimentConfig, directory: Path, say: Callable[[str], None]
    ) -> AsyncIterator[Sequence[RemoteStart]]:
        seconds = config.ring.start_timeout_seconds
        async with reserved(config.nodes, self._cpus, seconds=seconds, say=say) as reservation:
            keepers = [_keeper(reservation, rank, self._cpus) for rank in range(config.nodes)]
            try:
                say(placement(reservation.hosts))
                yield await self._prepared(
                    _Keepers(keepers, reservation.hosts, seconds), launch, config, _absolute(directory)
                )
            finally:
                await _dismiss(keepers)

    async def _prepared(
        self, keepers: "_Keepers", launch: Launch, config: ExperimentConfig, directory: Path
    ) -> list[RemoteStart]:
        experiment = (directory / EXPERIMENT).read_text(encoding="utf-8")
        found: list[NodeEnvironment] = await keepers.each("inspect", [(str(directory), experiment)] * config.nodes)
        check_environments(found, keepers.hosts, launch.resume, config, directory)
        addresses = listening_hosts([each.machine for each in found], keepers.hosts)
        peers = await keepers.each("listen", [(host, rank) for rank, host in enumerate(addresses)])
        everyones = _everyones_order(launch, experiment, peers, self._cpus, config)
        orders = [
            replace(everyones, rank=rank, directory=str(directory) if each.sees_directory else None)
            for rank, each in enumerate(found)
        ]
        verbose = config.logging == "verbose"
        return [
            RemoteStart(handle, order, host, directory, verbose and order.directory is None, keepers.seconds)
            for handle, order, host in zip(keepers.handles, orders, keepers.hosts, strict=True)
        ]


def _absolute(directory: Path) -> Path:
    return directory.absolute()  # links are kept: they may lead elsewhere on other machines


def _everyones_order(
    launch: Launch, experiment: str, peers: Sequence[str], threads: int, config: ExperimentConfig
) -> Order:
    return Order(
        rank=0,
        experiment=experiment,
        directory=None,
        peers=tuple(peers),
        working_directory=os.getcwd(),
        import_from=(str(launch.experiment.resolve().parent), os.getcwd()),
        resume=str(launch.resume.resolve()) if launch.resume else None,
        threads=threads,
        variables={name: value for name, value in os.environ.items() if name.startswith(OUR_VARIABLES)},
        key=None if config.ring.says_who_may_join else new_key(),
    )


class _Keepers:
    """Handles of all keepers, called together."""

    def __init__(self, handles: Sequence[Any], hosts: Sequence[str], seconds: float) -> None:
        self.handles, self.hosts, self.seconds = handles, hosts, seconds

    async def each(self, what: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        asked = [getattr(keeper, what).remote(*each) for keeper, each in zip(self.handles, arguments, strict=True)]
        return await asyncio.gather(
            *(
                answer(reference, f"node {rank} on {host}", what, self.seconds)
                for rank, (reference, host) in enumerate(zip(asked, self.hosts, strict=True))
            )
        )


def _keeper(reservation: Reservation, rank: int, cpus: int) -> Any:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = PlacementGroupSchedulingStrategy(reservation.group, placement_group_bundle_index=rank)
    return ray.remote(Keeper).options(num_cpus=cpus, max_restarts=0, scheduling_strategy=strategy).remote()


async def _dismiss(keepers: Sequence[Any]) -> None:
    import ray

    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await asyncio.gather(*(keeper.end.remote() for keeper in keepers), return_exceptions=True)
    finally:
        for keeper in keepers:
            ray.kill(keeper)


def listening_hosts(machines: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """Address each node listens on: loopback if all share a machine, else the address of its Ray node."""
    return [LOOPBACK] * len(machines) if len(set(machines)) == 1 else list(hosts)


def placement(hosts: Sequence[str]) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    return "on Ray: " + "; ".join(
        f"node{'s' if len(there) > 1 else ''} {', '.join(map(str, there))} on {host}" for host, there in ranks.items()
    )


def check_environments(
    found: Sequence[NodeEnvironment],
    hosts: Sequence[str],
    resume: Path | None,
    config: ExperimentConfig,
    directory: Path,
) -> None:
    for rank, (each, host) in enumerate(zip(found, hosts, strict=True)):
        if each.version != our_version():
            raise JoinError(
                f"node {rank} on {host}: it has ringwide {each.version}, this machine has {our_version()};"
                " install the same on all machines of the Ray cluster"
            )
        if each.sees_directory:
            continue
        if config.checkpoint.every_steps is not None and config.checkpoint.directory is None:
            raise ConfigError(
                f"checkpoint.directory: node {rank} on {host} does not see {directory}, where its checkpoints would go;"
                " name a directory that all machines share, or leave checkpoint.every_steps out"
            )
        if resume is not None:
            raise ConfigError(
                f"--resume {resume}: node {rank} on {host} does not share this disk, so it cannot read its checkpoint"
            )


async def answer(reference: Any, who: str, what: str, seconds: float) -> Any:
    """Answer of a keeper, in time. Any failure becomes a `JoinError` that names the node."""
    from ray.exceptions import RayError, RayTaskError

    try:
        async with asyncio.timeout(seconds):
            return await reference
    except TimeoutError:
        raise JoinError(
            f"{who}: its Ray actor did not {what} within {seconds:g} s (start_timeout_seconds); is that machine busy?"
        ) from None
    except RayTaskError as error:
        raise JoinError(f"{who}: {error.cause or why(error)}") from error
    except RayError as error:
        raise JoinError(f"{who} was lost with its Ray actor: {why(error)}") from error


def why(error: BaseException) -> str:
    """The one sentence of Ray's long error text that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "because" in line or "Error:" in line] or lines
    return telling[-1].partition(". ")[0].rstrip(".") if telling else type(error).__name__
