"""Where the nodes of a launcher come from: Python's fork server, which has imported what they need.

A node is a process of its own, in a session of its own, with pipes for what it says. It ends with the server that
forked it, and the server ends with the launcher: so none is left behind, however the launcher ends.
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


def end_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which must be the one that started it, is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


# What `ps` and `top` call a process: nodes of one fork server would all have the name of the server.

PR_SET_NAME = 15


def call_this_process(name: str) -> None:
    """The kernel keeps 15 bytes of it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


APART = "ringwide.experiment.own_process_group"
PRELOADED = "ringwide.experiment.preload"
# Read when the libraries are loaded. The nodes are the threads: more of them would only fight for the cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SERVER_WAS_LOST = 255  # what multiprocessing says if nobody can say how a process ended


@dataclass(frozen=True, slots=True)
class Task:
    """What a child does: what `python -m module words...` would do."""

    module: str
    words: Sequence[str]
    import_from: Sequence[str] = ()  # where modules are looked for first
    title: str = ""  # what the process is called, if not as the server is


@dataclass(frozen=True, slots=True)
class Pipe:
    reader: asyncio.StreamReader
    transport: asyncio.ReadTransport


class Child:
    """One forked process: what it says, what it is told, how it ends."""

    def __init__(self, process: ForkServerProcess, output: Pipe, errors: Pipe) -> None:
        self._process, self._pipes = process, (output, errors)
        self.output, self.errors = output.reader, errors.reader
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(process.sentinel, self._ended)

    async def wait(self) -> int:
        """Its exit code; negative: the signal that killed it, as in `subprocess`."""
        return await asyncio.shield(self._code)

    def close(self) -> None:
        """Read nothing more of what it says."""
        for pipe in self._pipes:
            pipe.transport.close()

    def signal(self, number: int) -> None:
        if not self._code.done() and self._process.pid is not None:
            with suppress(ProcessLookupError):  # it has ended, and we are about to hear of it
                os.kill(self._process.pid, number)

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        self._code.set_result(SERVER_WAS_LOST if code is None else code)


async def fork(task: Task) -> Child:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([APART, PRELOADED])
    output, its_output = context.Pipe(duplex=False)
    errors, its_errors = context.Pipe(duplex=False)
    process = context.Process(target=_live, args=(task, its_output, its_errors))
    try:
        with _environment(ONE_THREAD):  # of the server, which is started with its first child
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
        await starting  # a thread cannot be cancelled, and what it starts would have nobody to end it
        process.kill()
        raise


def _start(process: ForkServerProcess) -> None:
    """Returns when the server is there, after all its imports.

    The server is started with its first child, and inherits which signals are blocked: for good, so that none ends it,
    not even before it has left our process group.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        resource_tracker.ensure_running()  # unblocks them once it has started; from then on it does nothing
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _live(task: Task, output: Connection, errors: Connection) -> None:
    """In the child, from its first moment."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    _let_the_server_end()
    end_with(os.getppid())
    launcher = multiprocessing.parent_process()
    if launcher is None or not launcher.is_alive():
        os.kill(os.getpid(), signal.SIGKILL)
    os.setsid()
    if task.title:
        call_this_process(task.title)
    os.dup2(output.fileno(), sys.stdout.fileno())
    os.dup2(errors.fileno(), sys.stderr.fileno())
    output.close()
    errors.close()
    sys.path[:0] = [path for path in task.import_from if path not in sys.path]
    sys.argv = [task.module, *task.words]
    runpy.run_module(task.module, run_name="__main__", alter_sys=True)


def _let_the_server_end() -> None:
    """It ends when nobody holds one pipe any more, which Python gives to every child: they would keep each other."""
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
