"""One run of a row: a ring of real processes, fault proxies before them if wanted, a check of what they wrote down."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.faults import checker
from tests.faults.crew import PATIENCE_SECONDS, Crew, Errand, Gone, Hung, Member
from tests.faults.history import RETURNED, BufferPool
from tests.faults.known import LARGEST_WEIGHT
from tests.faults.outcome import Run
from tests.faults.proxy import Network
from tests.faults.rank import Answer

from ringwide.bootstrap.rendezvous import LOOPBACK
from ringwide.experiment.find_peers import free_ports

PORTS = range(24_000, 32_000)  # the tests that run beside these in other processes use those below

LEAVE_SECONDS = 10.0


class Cast:
    """The ranks of one ring, while it lasts."""

    def __init__(self, name: str, members: Sequence[Member], run: Run, network: Network | None) -> None:
        self.name, self.members, self.run, self.network = name, members, run, network
        self.patience = PATIENCE_SECONDS
        self.ports: list[int] = []  # on which the ranks listen
        self.gone: set[int] = set()  # ranks that were killed, or that went by themselves
        self._calls = 0

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def here(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.gone]

    def others(self, rank: int) -> list[int]:
        return [other for other in self.here if other != rank]

    async def join(self, addresses: Sequence[str], listening: Sequence[str], settings: dict[str, Any]) -> None:
        joining = [
            member.do("join", run=self.name, rank=rank, peers=addresses, settings={"listen": listen, **settings})
            for rank, (member, listen) in enumerate(zip(self.members, listening, strict=True))
        ]
        for rank, answer in enumerate(await asyncio.gather(*joining)):
            if answer["outcome"] != RETURNED:
                raise Hung(f"run {self.name}: rank {rank} did not join: {answer['words']}")

    def start(
        self,
        ranks: Iterable[int],
        counts: Sequence[int],
        *,
        kind: str = "allreduce",
        dtype: str = "float32",
        op: str = "sum",
        call: int | None = None,
    ) -> dict[int, Errand]:
        """The next call, or several at once, on some ranks; `call` says which, for ranks that come late to one."""
        first = self._calls if call is None else call
        self._calls = max(self._calls, first + len(counts))
        weight = 1 + first * 7 % (LARGEST_WEIGHT - len(counts))
        details = {"first": first, "weight": weight, "counts": counts, "kind": kind, "dtype": dtype, "op": op}
        return {rank: self.members[rank].start("call", **details) for rank in ranks}

    @property
    def last_call(self) -> int:
        return self._calls - 1

    async def ends(self, errands: dict[int, Errand]) -> dict[int, Answer]:
        """What every rank answered. One that hangs is a complaint, and has no end."""
        answers = await asyncio.gather(*[self._end(rank, errand) for rank, errand in errands.items()])
        return {rank: answer for rank, answer in zip(errands, answers, strict=True) if answer is not None}

    async def _end(self, rank: int, errand: Errand) -> Answer | None:
        try:
            return await self.members[rank].done(errand, patience=self.patience)
        except Hung as error:
            self.run.complain(f"run {self.name}: rank {rank} hangs: {error}")
        except Gone:
            if rank not in self.gone:
                self.run.complain(f"run {self.name}: rank {rank} ended, though nobody told it to")
        return None

    async def until_error(self, errands: dict[int, Errand], counts: Sequence[int]) -> None:
        """A fault may come when some ranks have their sum already: they see it in their next call, at the latest.

        Fills `self.run.errors` with the first error of every rank.
        """
        for _ in range(3):
            ends = await self.ends(errands)
            for rank, answer in ends.items():
                self.run.hear(rank, answer)
                failed = [end for end in answer["ends"] if end["outcome"] != RETURNED]
                if failed:
                    self.run.errors[rank] = min(failed, key=lambda end: float(end["ended"]))
            late = [rank for rank in ends if rank not in self.run.errors]
            if not late:
                return
            errands = self.start(late, counts)
        self.run.complain(f"run {self.name}: ranks {late} see no error")

    async def on_all(self, what: str, ranks: Iterable[int] | None = None, **details: Any) -> dict[int, Answer]:
        ranks = self.here if ranks is None else ranks
        return await self.ends({rank: self.members[rank].start(what, **details) for rank in ranks})


class Stage:
    """Where runs take place."""

    def __init__(self, crew: Crew, directory: Path) -> None:
        self._crew, self._pool = crew, BufferPool(directory)
        self._names = itertools.count()
        self.patience = PATIENCE_SECONDS  # with a rank that may hang
        self._ports: set[int] = set()

    @asynccontextmanager
    async def ring(
        self, size: int, run: Run, *, network: Network | None = None, **settings: Any
    ) -> AsyncIterator[Cast]:
        """A ring that has formed. At the end all leave it, and what they wrote down is checked."""
        name = str(next(self._names))
        members = await self._crew.take(size)
        ports = self._take_ports(size)
        listening = [f"{LOOPBACK}:{port}" for port in ports]
        cast, fit = Cast(name, members, run, network), False
        cast.ports, cast.patience = ports, self.patience
        try:
            addresses = listening if network is None else await network.open(listening, [one.pid for one in members])
            await cast.join(addresses, listening, settings)
            yield cast
            fit = True
        finally:
            await self._end(cast, fit=fit)
            self._ports.difference_update(ports)

    async def _end(self, cast: Cast, *, fit: bool) -> None:
        fits = await asyncio.gather(*[self._leave(cast, rank, fit=fit) for rank in range(cast.size)])
        for member, one_fits in zip(cast.members, fits, strict=True):
            await self._crew.give_back(member, fit=one_fits)
        if cast.network is not None:
            await cast.network.close()
        for complaint in checker.complaints(self._pool.take(cast.name), cast.gone):
            cast.run.complain(complaint)

    async def _leave(self, cast: Cast, rank: int, *, fit: bool) -> bool:
        """Whether this rank may play again. What it leaves behind of its ring is a complaint."""
        if rank in cast.gone or not fit:
            return False
        try:
            left = await cast.members[rank].do("leave", patience=LEAVE_SECONDS)
        except (Hung, Gone) as error:
            cast.run.complain(f"run {cast.name}: rank {rank} cannot leave: {error}")
            return False
        cast.run.hear(rank, left)
        for leak in cast.members[rank].leaks(left):
            cast.run.complain(f"run {cast.name}: rank {rank} has left its ring, and still has {leak}")
        return True

    def _take_ports(self, count: int) -> list[int]:
        """Runs go on beside each other, and a port is not in use before its rank listens there."""
        while True:
            ports = free_ports(count, random.Random(), PORTS)
            if self._ports.isdisjoint(ports):
                self._ports.update(ports)
                return ports
