"""Fork server for the nodes of a launcher: Python's own, with everything a node needs already imported.

A node is a process in a session of its own, with pipes for its output. It dies with the server that forked it, and the
server dies with the launcher, so no process is left behind however the launcher ends.
"""

import asyncio
import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from ringwide.errors import RingwideError
from ringwide.experiment.stop_signals import SIGNALS

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent`, the process that started it, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


PR_SET_NAME = 15


def set_process_name(name: str) -> None:
    """Name shown by `ps` and `top`, of which the kernel keeps 15 bytes. A forked node would have the server's name."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


OWN_PROCESS_GROUP = "ringwide.experiment.own_process_group"
PRELOADED = "ringwide.experiment.preload"
# Read when the libraries are loaded. The nodes share the cores, so more threads would only compete for them.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SERVER_WAS_LOST = 255  # as in multiprocessing, if nobody knows how a process ended


@dataclass(frozen=True, slots=True)
class Task:
    """Work of a child: the same as `python -m module arguments...`."""

    module: str
    arguments: Sequence[str]
    import_from: Sequence[str] = ()  # directories put first on sys.path
    title: str = ""  # process name; by default the server's


@dataclass(frozen=True, slots=True)
class Pipe:
    reader: asyncio.StreamReader
    transport: asyncio.ReadTransport


class Child:
    """Forked process: its output, its signals and its exit code."""

    def __init__(self, process: ForkServerProcess, output: Pipe, errors: Pipe) -> None:
        self._process, self._pipes = process, (output, errors)
        self.output, self.errors = output.reader, errors.reader
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(process.sentinel, self._ended)

    async def wait(self) -> int:
        """Exit code. A negative one is the signal that killed it, as in `subprocess`."""
        return await asyncio.shield(self._code)

    def close(self) -> None:
        """Stop reading its output."""
        for pipe in self._pipes:
            pipe.transport.close()

    def signal(self, number: int) -> None:
        if not self._code.done() and self._process.pid is not None:
            with suppress(ProcessLookupError):  # it has ended, and `_ended` is about to be called
                os.kill(self._process.pid, number)

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        self._code.set_result(SERVER_WAS_LOST if code is None else code)


async def fork(task: Task) -> Child:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([OWN_PROCESS_GROUP, PRELOADED])
    output, its_output = context.Pipe(duplex=False)
    errors, its_errors = context.Pipe(duplex=False)
    process = context.Process(target=_run_child, args=(task, its_output, its_errors))
    try:
        with _environment(ONE_THREAD):  # for the server, which starts with its first child
            await _started(process)
    except (OSError, EOFError) as error:
        output.close()
        errors.close()
        server_ended = isinstance(error, EOFError | ConnectionError)
        reason = "the process that nodes are forked from has ended" if server_ended else error
        raise RingwideError(f"a node cannot be started: {reason}") from error
    finally:
        its_output.close()
        its_errors.close()
    return Child(process, await _pipe(output), await _pipe(errors))


async def _started(process: ForkServerProcess) -> None:
    starting = asyncio.ensure_future(asyncio.to_thread(_start, process))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await starting  # a thread cannot be cancelled, and nobody else would end what it starts
        process.kill()
        raise


def _start(process: ForkServerProcess) -> None:
    """Start the process; for the first one, wait until the server is up and has made its imports.

    The server starts with its first child and inherits the blocked signals. They stay blocked, so that none ends the
    server, not even before it has left our process group.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        resource_tracker.ensure_running()  # it unblocks the signals when it starts, so start it first
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_child(task: Task, output: Connection, errors: Connection) -> None:
    """Main function of the child."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    _close_alive_pipe()
    die_with_parent(os.getppid())
    launcher = multiprocessing.parent_process()
    if launcher is None or not launcher.is_alive():
        os.kill(os.getpid(), signal.SIGKILL)
    os.setsid()
    if task.title:
        set_process_name(task.title)
    os.dup2(output.fileno(), sys.stdout.fileno())
    os.dup2(errors.fileno(), sys.stderr.fileno())
    output.close()
    errors.close()
    sys.path[:0] = [path for path in task.import_from if path not in sys.path]
    sys.argv = [task.module, *task.arguments]
    sys.modules.pop(task.module, None)  # a launcher that is a script was imported here, and runpy would warn
    runpy.run_module(task.module, run_name="__main__", alter_sys=True)


def _close_alive_pipe() -> None:
    """Close our copy of the pipe that keeps the server alive: it ends when no process holds that pipe open."""
    server: Any = forkserver._forkserver
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


async def _pipe(connection: Connection) -> Pipe:
    file = os.fdopen(os.dup(connection.fileno()), "rb")
    connection.close()
    reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return Pipe(reader, transport)
