"""Keeper of one node: the Ray actor that starts the node as its child process, passes on its output and its signals.

The node is a child process because it can then be signalled and killed whatever it computes, and because it is the same
process as on any other host. The kernel kills it when the keeper ends, for example with its Ray node. This module
imports nothing of Ray.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ringwide.bootstrap.listen import listen
from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.rendezvous import this_machine
from ringwide.errors import RingwideError
from ringwide.experiment.fleet import lines_of
from ringwide.experiment.recorder import versions


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """Environment of a keeper, compared with that of the launcher."""

    machine: str  # equal exactly for nodes that reach each other over loopback
    version: str  # of ringwide
    sees_directory: bool  # the run's directory: this is the launcher's machine, or they share a disk


@dataclass(frozen=True, slots=True)
class Order:
    """Order to a keeper: everything it needs to start its node."""

    rank: int
    experiment: str  # the file's text
    directory: str | None  # of the run; None if that machine does not see it
    peers: tuple[str, ...]
    working_directory: str  # of the launcher, used where it exists
    import_from: tuple[str, ...]
    resume: str | None
    threads: int
    variables: dict[str, str]  # RINGWIDE_* of the launcher's environment
    key: str | None = field(repr=False)  # text of a key file made for this run


@dataclass(frozen=True, slots=True)
class NewOutput:
    """Output of a node since the last poll, and its exit code after the last of it."""

    output: tuple[str, ...]
    errors: tuple[str, ...]
    code: int | None = None


def our_version() -> str:
    return versions().get("ringwide", "not installed as a package")


CHILD = "ringwide.experiment.ray.child"
POLL_SECONDS = 5.0
"""A poll is answered after this long even without output, which shows that the keeper is alive."""
MOST_HELD = 8 * 1024 * 1024
"""Characters of output kept until the next poll. Beyond this the node blocks."""
CHUNK_BYTES = 4 * 1024 * 1024
EXPERIMENT = "experiment.yaml"
OUR_VARIABLES = "RINGWIDE_"


class Keeper:
    """Ray actor with one node. The launcher calls `inspect`, `listen`, `start`, then `poll` until there is a code."""

    def __init__(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="ringwide-"))
        self._listener: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._log = self._scratch
        self._buffer = _OutputBuffer()
        self._watching: asyncio.Task[None] | None = None
        self._code: int | None = None

    async def inspect(self, directory: str, experiment: str) -> NodeEnvironment:
        return NodeEnvironment(this_machine(), our_version(), _holds(Path(directory, EXPERIMENT), experiment))

    async def listen(self, host: str, rank: int) -> str:
        """Listen on behalf of the node and return the address. The kernel chooses a port, which the node inherits."""
        try:
            # The node, which knows the settings, checks whether that is safe beyond loopback.
            with listen(Address(host, 0), rank=rank, beyond_loopback=True) as listener:
                port = listener.getsockname()[1]
                self._listener = listener.detach()
        except RingwideError as error:
            raise RingwideError(str(error)) from None  # not every error of ours can be pickled
        return str(Address(host, port))

    async def start(self, order: Order) -> None:
        directory = Path(order.directory or self._scratch)
        self._log = directory / f"node-{order.rank}.log"
        (self._scratch / "peers.txt").write_text("".join(f"{peer}\n" for peer in order.peers), encoding="utf-8")
        (self._scratch / EXPERIMENT).write_text(order.experiment, encoding="utf-8")
        arguments = ["--json", "--rank", str(order.rank), "--peers", str(self._scratch / "peers.txt")]
        arguments += ["--config", str(directory / EXPERIMENT), "--run-directory", str(directory)]
        arguments += ["--resume", order.resume] if order.resume else []
        inherited = [] if self._listener is None else [self._listener]
        arguments += ["--listener", str(self._listener)] if inherited else []
        with _unnamed_file(order.key) as key:
            if key is not None:
                arguments += ["--key-file", f"/dev/fd/{key}"]
                inherited.append(key)
            await self._spawn(order, arguments, inherited)
        self._close_listener()
        self._watching = asyncio.ensure_future(self._watch())

    async def poll(self) -> NewOutput:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._buffer.anything.wait()
        output, errors = self._buffer.take()
        if self._watching is not None and self._watching.done():
            self._watching.result()
            return NewOutput(output, errors, self._code)
        return NewOutput(output, errors)

    async def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def log(self, offset: int) -> bytes:
        """Bytes of the node's log file from `offset` on, up to `CHUNK_BYTES`."""
        try:
            with self._log.open("rb") as file:
                file.seek(offset)
                return file.read(CHUNK_BYTES)
        except OSError:
            return b""

    async def end(self) -> None:
        """Kill the node and remove its files."""
        await self.signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()
        self._close_listener()
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def _spawn(self, order: Order, arguments: Iterable[str], inherited: Iterable[int]) -> None:
        import_from = os.pathsep.join([*order.import_from, os.getcwd()])
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", CHILD, str(os.getpid()), import_from, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=_if_exists(order.working_directory),
            env=_environment(order, os.environ),
            pass_fds=tuple(inherited),
            start_new_session=True,  # signals to Ray's process groups are not for the node
        )

    async def _watch(self) -> None:
        process, buffer = self._process, self._buffer
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            await asyncio.gather(buffer.fill(process.stdout, buffer.output), buffer.fill(process.stderr, buffer.errors))
            self._code = await process.wait()
        finally:
            buffer.anything.set()

    def _close_listener(self) -> None:
        if self._listener is not None:
            os.close(self._listener)
            self._listener = None


class _OutputBuffer:
    """Output of the node that was not polled yet."""

    def __init__(self) -> None:
        self.output: list[str] = []
        self.errors: list[str] = []
        self.anything, self._room = asyncio.Event(), asyncio.Event()
        self._held = 0

    async def fill(self, stream: asyncio.StreamReader, lines: list[str]) -> None:
        async for line in lines_of(stream):
            lines.append(line)
            self._held += len(line)
            self.anything.set()
            if self._held > MOST_HELD:
                self._room.clear()
                await self._room.wait()

    def take(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        taken = tuple(self.output), tuple(self.errors)
        self.output.clear()
        self.errors.clear()
        self._held = 0
        self.anything.clear()
        self._room.set()
        return taken


def _if_exists(directory: str) -> str | None:
    return directory if Path(directory).is_dir() else None


def _holds(file: Path, text: str) -> bool:
    try:
        return file.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


@contextmanager
def _unnamed_file(text: str | None) -> Iterator[int | None]:
    """Descriptor of an unnamed file with this text: only a child can read it, and it vanishes however we end."""
    if text is None:
        yield None
        return
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        os.fchmod(file.fileno(), 0o600)
        yield file.fileno()


def _environment(order: Order, ours: Mapping[str, str]) -> dict[str, str]:
    """Ray's environment with the launcher's RINGWIDE_* variables instead of those that Ray was started with."""
    threads = {"OMP_NUM_THREADS": str(order.threads), "OPENBLAS_NUM_THREADS": str(order.threads)}
    rest = {name: value for name, value in ours.items() if not name.startswith(OUR_VARIABLES)}
    return {**rest, **threads, **order.variables}
