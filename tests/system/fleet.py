"""A fleet of real processes, each running one function as one rank; its JSON result comes back, or how it ended.

    with Fleet(acts.sum_once, size=3, count=5) as fleet:
        for outcome in fleet.outcomes(): ...

The function is `async def act(rank, peers, **arguments)` in a file of its own; `peers` has one list of addresses for
each ring that the act joins, so that one start of the processes pays for many rings. Processes are ended by their id,
whatever happens.
"""

import asyncio
import importlib.util
import inspect
import json
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from ringwide.bootstrap.rendezvous import LOOPBACK
from ringwide.experiment.find_peers import free_ports

PORTS = range(24_000, 32_000)  # the tests that run beside these in other processes use those below

Act = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class Outcome:
    """How one rank ended."""

    rank: int
    exit_code: int
    result: Any
    complaints: str


class Fleet:
    """The processes of one act, from start to end."""

    def __init__(self, act: Act, *, size: int, rings: int = 1, **arguments: Any) -> None:
        self._command = [sys.executable, __file__, inspect.getfile(act), act.__name__]
        self._size = size
        addresses = [f"{LOOPBACK}:{port}" for port in free_ports(size * rings, random.Random(), PORTS)]
        self._arguments = {"peers": [addresses[ring::rings] for ring in range(rings)], **arguments}
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        for rank in range(self._size):
            arguments = json.dumps({"rank": rank, **self._arguments})
            pipe = subprocess.PIPE
            self._processes.append(subprocess.Popen([*self._command, arguments], stdout=pipe, stderr=pipe, text=True))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def outcomes(self, *, seconds: float = 110) -> list[Outcome]:
        """Wait for all of them; one that does not end in time fails the test with what it had to say."""
        deadline = time.monotonic() + seconds
        return [self._outcome(rank, deadline - time.monotonic()) for rank in range(self._size)]

    def results(self, *, seconds: float = 110) -> list[Any]:
        """What every rank returned; a rank that failed fails the test with its words."""
        outcomes = self.outcomes(seconds=seconds)
        failed = [f"rank {one.rank}: exit {one.exit_code}\n{one.complaints}" for one in outcomes if one.exit_code]
        assert not failed, "\n".join(failed)
        return [outcome.result for outcome in outcomes]

    def _outcome(self, rank: int, seconds: float) -> Outcome:
        process = self._processes[rank]
        try:
            said, complaints = process.communicate(timeout=max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"rank {rank} did not end in time: {process.communicate()[1]}") from None
        return Outcome(rank, process.returncode, json.loads(said) if said else None, complaints)


def _load(path: str, name: str) -> Act:
    spec = importlib.util.spec_from_file_location("acts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)  # type: ignore[no-any-return]


def _run_as_rank(path: str, name: str, arguments: str) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result: Any = runner.run(_load(path, name)(**json.loads(arguments)))  # type: ignore[arg-type]
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    _run_as_rank(*sys.argv[1:])
