"""The processes of one contestant, as the leader sees them: started, met, given orders, ended. No wait is endless."""

import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.fleet import free_addresses
from bench.speed.contestants import Contestant
from bench.speed.conversation import VARIABLE, Message, die_with_parent
from bench.speed.environments import ROOT, reason_in

MEET_SECONDS = 120
JOIN_SECONDS = 90
LEAVE_SECONDS = 5
LONGEST_LINE = 2**20


class ContestantFailed(Exception):
    """A contestant does not go on. The text says why."""


class Session:
    """One contestant with some ranks, from `start` to `end`."""

    def __init__(self, contestant: Contestant, ranks: int) -> None:
        self.contestant, self.ranks = contestant, contestant.ranks(ranks)
        self._asked = ranks
        self._directory = tempfile.TemporaryDirectory(prefix="bench-speed-")
        self._log = Path(self._directory.name) / "log"
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=self.ranks)
        self._token = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._workers: list[_Worker] = []

    def start(self) -> None:
        host, port = self._listener.getsockname()
        leader = {VARIABLE: f"{host}:{port}:{self._token}", "TMPDIR": self._directory.name}
        with open(self._log, "wb") as log:
            try:
                self._process = subprocess.Popen(
                    self.contestant.full_command(self._asked),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=ROOT,
                    env=self.contestant.full_environment(leader),
                    start_new_session=True,  # all that it starts can be found by this
                    preexec_fn=die_with_parent,
                )
            except OSError as error:
                raise ContestantFailed(f"it cannot be started: {error}") from None

    def join(self, sizes: Sequence[int]) -> list[Message]:
        """All ranks are there, and have found each other."""
        self._meet()
        told = [worker.address for worker in self._workers]
        addresses = told if all(told) else free_addresses(self.ranks)
        order = {
            "do": "join",
            "addresses": addresses,
            "settings": dict(self.contestant.settings),
            "sizes": list(sizes),
        }
        return self._ask([{**order, "rank": rank} for rank in range(self.ranks)], JOIN_SECONDS)

    def turn(self, nbytes: int, calls: int, **more: Any) -> list[Message]:
        order = {"do": "turn", "bytes": nbytes, "calls": calls, **more}
        return self._ask([order] * self.ranks, self.contestant.turn_seconds)

    def end(self) -> None:
        """Let it leave; what is still there after that is killed."""
        for worker in self._workers:
            worker.close()
        self._listener.close()
        if self._process is not None:
            self._end_processes(self._process)
            self._process = None
        self._directory.cleanup()

    def _end_processes(self, process: "subprocess.Popen[bytes]") -> None:
        try:
            process.wait(LEAVE_SECONDS if self._workers else 0)
        except subprocess.TimeoutExpired:
            process.terminate()  # mpirun removes its files and its ranks
            _wait_or_kill(process)
        _kill_session(process.pid)
        process.wait()

    def _meet(self) -> None:
        deadline = time.monotonic() + MEET_SECONDS
        arrived: dict[int, _Worker] = {}
        while len(arrived) < self.ranks:
            worker = self._accept(deadline, len(arrived))
            arrived[worker.rank] = worker
            self._workers = [arrived[rank] for rank in sorted(arrived)]

    def _accept(self, deadline: float, arrived: int) -> "_Worker":
        while time.monotonic() < deadline:
            self._listener.settimeout(0.2)
            try:
                accepted, _ = self._listener.accept()
            except TimeoutError:
                self._check_process()
                continue
            worker = _Worker(accepted)
            hello = worker.read(deadline)
            if hello is not None and hello.get("token") == self._token and 0 <= hello["rank"] < self.ranks:
                worker.rank, worker.address = hello["rank"], hello.get("address")
                return worker
            worker.close()  # somebody else, on a port that they found open
        raise ContestantFailed(f"only {arrived} of {self.ranks} ranks came within {MEET_SECONDS} s: {self._reason()}")

    def _check_process(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise ContestantFailed(f"it ended with {self._process.returncode}: {self._reason()}")

    def _reason(self) -> str:
        return reason_in(self._log.read_text(errors="replace"))

    def _ask(self, orders: Sequence[Message], seconds: float) -> list[Message]:
        """Every rank's answer, in the order of ranks."""
        deadline = time.monotonic() + seconds
        answers: dict[int, Message] = {}
        with selectors.DefaultSelector() as selector:
            for worker, order in zip(self._workers, orders, strict=True):
                selector.register(worker.socket, selectors.EVENT_READ, worker)
                self._tell(worker, order)
            while len(answers) < self.ranks:
                ready = selector.select(max(deadline - time.monotonic(), 0))
                if not ready:
                    silent = [worker.rank for worker in self._workers if worker.rank not in answers]
                    raise ContestantFailed(f"ranks {silent} did not answer within {seconds:g} s")
                for key, _ in ready:
                    answers[key.data.rank] = self._answer(key.data, deadline)
                    selector.unregister(key.data.socket)
        return [answers[rank] for rank in range(self.ranks)]

    def _tell(self, worker: "_Worker", order: Message) -> None:
        try:
            worker.say(order)
        except OSError:
            raise ContestantFailed(f"rank {worker.rank} is gone: {self._reason()}") from None

    def _answer(self, worker: "_Worker", deadline: float) -> Message:
        answer = worker.read(deadline)
        if answer is None:
            raise ContestantFailed(f"rank {worker.rank} is gone: {self._reason()}")
        if "failed" in answer:
            raise ContestantFailed(f"rank {worker.rank}: {answer['failed']}")
        return answer


class _Worker:
    """The leader's end of the connection with one rank."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.rank, self.address = -1, None

    def say(self, message: Message) -> None:
        self.socket.settimeout(10)
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self, deadline: float) -> Message | None:
        """One line; none if there is no whole one in time, or it is not a message."""
        line = bytearray()
        while not line.endswith(b"\n") and len(line) < LONGEST_LINE:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                piece = self.socket.recv(2**16)  # a worker says nothing more before it is asked again
            except OSError:
                return None
            if not piece:
                return None
            line += piece
        try:
            message = json.loads(line)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        self.socket.close()


def _wait_or_kill(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _kill_session(session: int) -> None:
    """Every process that the first one has started, and that has not made itself independent; until all are gone."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while (members := _members(session)) and time.monotonic() < deadline:
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _members(session: int) -> list[int]:
    """All that live."""
    found = []
    for directory in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(directory.name)
            state, _, _, belongs_to = (directory / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(belongs_to) == session and state != "Z":
                found.append(pid)
    return found
