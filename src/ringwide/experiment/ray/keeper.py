"""The actor that keeps one node on its Ray node: a child process, what it says, how it ends. It knows nothing of Ray.

A child process, because it can be signalled and killed whatever it computes, and because it is then just what a node is
elsewhere. It does not outlive the keeper: the kernel kills it when the keeper, for example with its Ray node, is gone.
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
    """Where a keeper is."""

    machine: str  # equal for those that reach each other over loopback, and for no others
    version: str  # of ringwide
    sees_directory: bool  # of the run, as the launcher does: because it is the same machine, or the disk is shared


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that a keeper needs to start its node."""

    rank: int
    experiment: str  # the file's text
    directory: str | None  # of the run; None: it is not seen from there
    peers: tuple[str, ...]
    working_directory: str  # of the launcher, used where it exists
    import_from: tuple[str, ...]
    resume: str | None
    threads: int
    variables: dict[str, str]  # those of the launcher's environment that are about ringwide
    key: str | None = field(repr=False)  # the text of a key file, made for this run


@dataclass(frozen=True, slots=True)
class News:
    """What a node has said since the last news, and its exit code once that was all."""

    output: tuple[str, ...]
    errors: tuple[str, ...]
    code: int | None = None


def our_version() -> str:
    return versions().get("ringwide", "not installed as a package")


CHILD = "ringwide.experiment.ray.child"
NEWS_SECONDS = 5.0
"""The keeper answers after this long, also if there is nothing to tell: so that it is known to be there."""
MOST_HELD = 8 * 1024 * 1024
"""Characters that nobody has asked for yet; beyond it the node waits."""
CHUNK_BYTES = 4 * 1024 * 1024
EXPERIMENT = "experiment.yaml"
OUR_VARIABLES = "RINGWIDE_"


class Keeper:
    def __init__(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="ringwide-"))
        self._listener: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._log = self._scratch
        self._heard = _Heard()
        self._watching: asyncio.Task[None] | None = None
        self._code: int | None = None

    async def look(self, directory: str, experiment: str) -> NodeEnvironment:
        return NodeEnvironment(this_machine(), our_version(), _holds(Path(directory, EXPERIMENT), experiment))

    async def listen(self, host: str, rank: int) -> str:
        """Where this node will be found. The port is the kernel's choice, and nobody else can get it any more."""
        try:
            # Whether that is safe beyond loopback is asked by the node, which knows the settings.
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
        words = ["--json", "--rank", str(order.rank), "--peers", str(self._scratch / "peers.txt")]
        words += ["--config", str(directory / EXPERIMENT), "--run-directory", str(directory)]
        words += ["--resume", order.resume] if order.resume else []
        inherited = [] if self._listener is None else [self._listener]
        words += ["--listener", str(self._listener)] if inherited else []
        with _without_a_name(order.key) as key:
            if key is not None:
                words += ["--key-file", f"/dev/fd/{key}"]
                inherited.append(key)
            await self._spawn(order, words, inherited)
        self._close_listener()
        self._watching = asyncio.ensure_future(self._watch())

    async def news(self) -> News:
        with suppress(TimeoutError):
            async with asyncio.timeout(NEWS_SECONDS):
                await self._heard.anything.wait()
        output, errors = self._heard.take()
        if self._watching is not None and self._watching.done():
            self._watching.result()
            return News(output, errors, self._code)
        return News(output, errors)

    async def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def log(self, offset: int) -> bytes:
        """A part of what the node has written to its log file, in verbose mode."""
        try:
            with self._log.open("rb") as file:
                file.seek(offset)
                return file.read(CHUNK_BYTES)
        except OSError:
            return b""

    async def end(self) -> None:
        """Leave nothing behind."""
        await self.signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()
        self._close_listener()
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def _spawn(self, order: Order, words: Iterable[str], inherited: Iterable[int]) -> None:
        import_from = os.pathsep.join([*order.import_from, os.getcwd()])
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", CHILD, str(os.getpid()), import_from, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=_if_there(order.working_directory),
            env=_environment(order, os.environ),
            pass_fds=tuple(inherited),
            start_new_session=True,  # a signal to a process group of Ray is not for the node
        )

    async def _watch(self) -> None:
        process, heard = self._process, self._heard
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            await asyncio.gather(heard.hear(process.stdout, heard.output), heard.hear(process.stderr, heard.errors))
            self._code = await process.wait()
        finally:
            heard.anything.set()

    def _close_listener(self) -> None:
        if self._listener is not None:
            os.close(self._listener)
            self._listener = None


class _Heard:
    """What the node has said and nobody has asked for yet."""

    def __init__(self) -> None:
        self.output: list[str] = []
        self.errors: list[str] = []
        self.anything, self._room = asyncio.Event(), asyncio.Event()
        self._held = 0

    async def hear(self, stream: asyncio.StreamReader, lines: list[str]) -> None:
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


def _if_there(directory: str) -> str | None:
    return directory if Path(directory).is_dir() else None


def _holds(file: Path, text: str) -> bool:
    try:
        return file.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


@contextmanager
def _without_a_name(text: str | None) -> Iterator[int | None]:
    """A file that only those can read who inherit it, so that nothing of it is left on a disk, however we end."""
    if text is None:
        yield None
        return
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        os.fchmod(file.fileno(), 0o600)
        yield file.fileno()


def _environment(order: Order, ours: Mapping[str, str]) -> dict[str, str]:
    """Ray's, but what it says of ringwide is for those who started Ray; the launcher's is what was meant."""
    threads = {"OMP_NUM_THREADS": str(order.threads), "OPENBLAS_NUM_THREADS": str(order.threads)}
    rest = {name: value for name, value in ours.items() if not name.startswith(OUR_VARIABLES)}
    return {**rest, **threads, **order.variables}
