"""Several ranks of one ring as tasks on one event loop, over real connections on loopback."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import ringwide
from ringwide.bootstrap.rendezvous import LOOPBACK
from ringwide.experiment.find_peers import free_ports

Result = TypeVar("Result")
Act = Callable[[ringwide.Ring], Awaitable[Result]]

PATIENCE_SECONDS = 100


PORTS = {"": range(24_000, 32_000), "gw0": range(10_000, 17_000), "gw1": range(17_000, 24_000)}
"""Each process that runs tests beside others has ports of its own: between finding one free and listening on it,
another would take it now and then."""


def own_ports(count: int) -> list[int]:
    return free_ports(count, random.Random(), PORTS.get(os.environ.get("PYTEST_XDIST_WORKER", "")))


def free_peers(size: int) -> list[str]:
    return [f"{LOOPBACK}:{port}" for port in own_ports(size)]


async def on_every_rank(
    size: int,
    act: Act[Result],
    *,
    stay: bool = True,
    patience: float = PATIENCE_SECONDS,
    each: Sequence[Mapping[str, Any]] = (),
    **settings: Any,
) -> list[Result]:
    """What `act(ring)` returns on every rank of a new ring, by rank. `each`: the settings of each, where they differ.

    Nobody leaves before all are through (unless `stay` is false), so that a rank's goodbye is not what others see.
    """
    peers = free_peers(size)
    configs = [ringwide.RingConfig(**settings, **own) for own in each or [{}] * size]
    all_through, through = asyncio.Event(), []

    async def one_rank(rank: int) -> Result:
        async with ringwide.join(rank=rank, peers=peers, config=configs[rank]) as ring:
            try:
                result = await act(ring)
            except BaseException:
                all_through.set()  # the test has failed: let the others go
                raise
            through.append(rank)
            if len(through) == size:
                all_through.set()
            if stay:
                await all_through.wait()
            return result

    async with asyncio.timeout(patience):
        return await all_of([one_rank(rank) for rank in range(size)])


async def all_of(acts: list[Awaitable[Result]]) -> list[Result]:
    """All results, or the first error that was not caused by the end of another."""
    outcomes = await asyncio.gather(*acts, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, ringwide.PeerLost))
    return outcomes  # type: ignore[return-value]


async def error_of(awaitable: Awaitable[object]) -> BaseException:
    """The error that this ends with."""
    try:
        result = await awaitable
    except (Exception, asyncio.CancelledError) as error:
        return error
    raise AssertionError(f"no error, but {result!r}")


class Everyone:
    """Where so many tasks wait for each other, without a frame."""

    def __init__(self, count: int) -> None:
        self._missing, self._here = count, asyncio.Event()

    async def wait(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._here.set()
        await self.watch()

    async def watch(self) -> None:
        await asyncio.wait_for(self._here.wait(), PATIENCE_SECONDS)
