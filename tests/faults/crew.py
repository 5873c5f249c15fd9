"""The processes that play ranks, seen from outside: hired, ordered, signalled, ended."""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.faults.rank import CONTROL_LINE_BYTES, Answer

PATIENCE_SECONDS = 60.0
ROOT = Path(__file__).parents[2]


class Gone(Exception):
    """The process has ended."""


class Hung(Exception):
    """The process has not answered for so long that something must be wrong with it, or with a rank that it needs."""


class Errand:
    """One order: when its call began, and what came of it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[float] = loop.create_future()
        self.answer: asyncio.Future[Answer] = loop.create_future()
        for future in (self.begun, self.answer):
            future.add_done_callback(lambda future: future.cancelled() or future.exception())  # nobody need ask

    def fail(self, error: Exception) -> None:
        for future in (self.begun, self.answer):
            if not future.done():
                future.set_exception(error)


class Member:
    """One process."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid, self.name = pid, name
        self._handle = os.pidfd_open(pid)  # so that no signal meets another process that has got its number
        self._errands: deque[Errand] = deque()
        self._had: Answer | None = None  # after its first ring
        self._ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._handle, self._note_end)

    async def connect(self, control: socket.socket) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=control, limit=CONTROL_LINE_BYTES)
        self._listening = asyncio.create_task(self._listen(reader))

    @property
    def alive(self) -> bool:
        return not self._ended.done()

    def start(self, what: str, **details: Any) -> Errand:
        errand = Errand()
        self._errands.append(errand)
        self._writer.write(json.dumps({"do": what, **details}).encode() + b"\n")
        return errand

    async def do(self, what: str, *, patience: float = PATIENCE_SECONDS, **details: Any) -> Answer:
        return await self.done(self.start(what, **details), patience=patience)

    async def done(self, errand: Errand, *, patience: float = PATIENCE_SECONDS) -> Answer:
        try:
            async with asyncio.timeout(patience):
                return await asyncio.shield(errand.answer)
        except TimeoutError:
            raise Hung(f"{self.name} did not answer for {patience:g} s") from None

    def signal(self, number: signal.Signals) -> float:
        """When it was sent."""
        now = time.monotonic()
        if self.alive:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)
        return now

    def leave_for_good(self) -> float:
        """Have it end as a program ends that is through; when it was told."""
        self._writer.write(b'{"do": "exit"}\n')
        return time.monotonic()

    def leaks(self, left: Answer) -> list[str]:
        """What it has after it has left a ring, and did not have when it left its first."""
        if self._had is None:
            self._had = {**left, "tasks": 1, "threads": 1}
        more = [name for name in ("tasks", "threads", "descriptors") if left[name] > self._had[name]]
        return [f"{left[name]} {name} instead of {self._had[name]}" for name in more]

    async def ended(self, *, patience: float = PATIENCE_SECONDS) -> float:
        """When it had ended."""
        try:
            async with asyncio.timeout(patience):
                return await asyncio.shield(self._ended)
        except TimeoutError:
            raise Hung(f"{self.name} did not end for {patience:g} s") from None

    async def dismiss(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                self._hear(json.loads(line))
        for errand in self._errands:
            errand.fail(Gone(f"{self.name} has ended"))

    def _hear(self, words: dict[str, Any]) -> None:
        if "begun" in words:
            self._errands[0].begun.set_result(words["begun"])
        else:
            self._errands.popleft().answer.set_result(words["answer"])

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self._ended.set_result(time.monotonic())


class Crew:
    """All processes, those that play and those that wait for a part."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._numbers = directory, itertools.count()
        self._idle: list[Member] = []
        self._all: set[Member] = set()

    async def __aenter__(self) -> Self:
        self._open_nursery()
        self._hiring = asyncio.Lock()
        return self

    def _open_nursery(self) -> None:
        self._requests, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.setblocking(False)
        command = [sys.executable, "-W", "error", "-m", "tests.faults.nursery", str(its_end.fileno())]
        descriptors = [its_end.fileno()]
        self._nursery = subprocess.Popen(command, cwd=ROOT, pass_fds=descriptors, start_new_session=True)
        its_end.close()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*[member.dismiss() for member in self._all])
        self._requests.close()
        await asyncio.to_thread(self._nursery.wait)

    async def take(self, count: int) -> list[Member]:
        """So many that have nothing to do."""
        taken = [self._idle.pop() for _ in range(min(count, len(self._idle)))]
        taken += [await self._hire() for _ in range(count - len(taken))]
        return taken

    async def give_back(self, member: Member, *, fit: bool) -> None:
        """One that is not fit to play again is dismissed."""
        if fit and member.alive:
            self._idle.append(member)
        else:
            await member.dismiss()
            self._all.discard(member)

    async def _hire(self) -> Member:
        number = next(self._numbers)
        ours, its_end = socket.socketpair()
        words = {"book": str(self._directory / f"{number}.jsonl"), "loop": "uvloop" if number % 2 else "asyncio"}
        async with self._hiring:
            socket.send_fds(self._requests, [json.dumps(words).encode()], [its_end.fileno()])
            its_end.close()
            pid = int(await asyncio.get_running_loop().sock_recv(self._requests, 32))
        member = Member(pid, f"process {number}")
        self._all.add(member)
        await member.connect(ours)
        return member
