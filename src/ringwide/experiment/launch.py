"""One run: its nodes started, here or elsewhere, watched, recorded, and summed up."""

import asyncio
import io
import random
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    nullcontext,
)
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TextIO

from ringwide.errors import ConfigError, RingwideError
from ringwide.experiment import summary
from ringwide.experiment.board import Board
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.fleet import Command, FleetEnding, NodeFailed, StartNode, name_of_signal, run_fleet
from ringwide.experiment.forkserver import Task
from ringwide.experiment.node_messages import decode
from ringwide.experiment.recorder import FORMAT, RESULTS, UNFINISHED, Recorder, Status, new_directory, write_json
from ringwide.experiment.stop_signals import ENDED_BY_SIGNAL, StopSignals, halted_by_signals, until_any
from ringwide.experiment.sweep import Variant, load_variants, write_document
from ringwide.experiment.view import LOOK_EVERY_SECONDS, View, view_for

LOOPBACK = "127.0.0.1"
FIRST_PORT = 10_000
TRIES_PER_PORT = 100


def free_ports(count: int, chance: random.Random, among: range | None = None) -> list[int]:
    """Ports that nobody listens on now, of those that are given.

    By default they lie below those the kernel gives to outgoing connections: otherwise a node that dials early could
    be given the port on which a later one is about to listen.
    """
    candidates = among or range(FIRST_PORT, max(_first_outgoing_port(), FIRST_PORT + 1000))
    found: set[int] = set()
    for _ in range(TRIES_PER_PORT * count):
        port = chance.choice(candidates)
        if port not in found and _is_free(port):
            found.add(port)
        if len(found) == count:
            return sorted(found)
    raise ConfigError(f"nodes: {count}: found only {len(found)} free ports on {LOOPBACK}; use fewer nodes")


def write_peers(path: Path, ports: list[int]) -> None:
    path.write_text("".join(f"{LOOPBACK}:{port}\n" for port in ports), encoding="utf-8")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the nodes will: a port in TIME_WAIT can be listened on again.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _first_outgoing_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


STOPPING = "stopping at the end of this step, for the report; a second signal ends all at once"
ENDING = "ending the nodes, which have not begun"
UNREAD = "nobody read its output"


class NodeHost(Protocol):
    """Where nodes run: each a process of this machine, or somewhere in a cluster."""

    patience_seconds: float
    """How much later it may be known that a node is gone than that others have lost it."""

    def starts(
        self, launch: "Launch", config: ExperimentConfig, directory: Path, say: Callable[[str], None]
    ) -> AbstractAsyncContextManager[Sequence[StartNode]]:
        """What starts each node, by rank; what it needs is there for the length of the block."""
        ...


class ThisMachine:
    patience_seconds = 0.0

    @asynccontextmanager
    async def starts(
        self, launch: "Launch", config: ExperimentConfig, directory: Path, say: Callable[[str], None]
    ) -> AsyncIterator[Sequence[StartNode]]:
        with TemporaryDirectory(prefix="ringwide-") as temporary:
            peers = Path(temporary, "peers.txt")
            write_peers(peers, free_ports(config.nodes, random.Random()))
            yield [node_command(launch, directory, peers, rank) for rank in range(config.nodes)]


@dataclass(frozen=True, slots=True)
class Launch:
    """What all variants of an experiment have in common."""

    experiment: Path
    out: TextIO
    halt: StopSignals
    resume: Path | None = None
    place: NodeHost = field(default_factory=ThisMachine)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    status: Status
    reason: str = ""
    error: Exception | None = None


async def run_variant(launch: Launch, variant: Variant, directory: Path) -> RunOutcome:
    """Run it to some end. Whatever that is, the directory, which exists, then holds a report of it."""
    out = launch.out if variant.config.logging != "silent" else io.StringIO()
    write_document(directory / "experiment.yaml", variant.document)
    board = Board(variant.config)
    with closing(Recorder(directory, board, label=variant.label)) as recorder:
        try:
            ending = await _watched(launch, board, recorder, out)
            outcome = _outcome(board, ending)
            _tell(board, ending, outcome, out)
        except NodeFailed as error:
            outcome = RunOutcome("failed", error.reason, error)
        except RingwideError as error:
            outcome = RunOutcome("failed", str(error), error)
        except BrokenPipeError as error:
            outcome = RunOutcome("stopped", UNREAD, error)
        except OSError as error:
            outcome = RunOutcome("failed", f"its output cannot be written: {error.strerror}", error)
        summary.warn_of_losses(board)
        try:
            report = recorder.finish(outcome.status, outcome.reason)
        except RingwideError as error:
            return outcome if outcome.error else RunOutcome("failed", str(error), error)
    if not isinstance(outcome.error, OSError):
        print(f"report: {report}", file=out, flush=True)
    return outcome


async def _watched(launch: Launch, board: Board, recorder: Recorder, out: TextIO) -> FleetEnding:
    def hear(rank: int, line: str) -> None:
        if message := decode(line):
            recorder.hear(rank, message)

    with view_for(board, out) as view:
        return await _shown(board, view, launch.halt, _run(launch, board, recorder.directory, hear, view.say))


async def _run(
    launch: Launch, board: Board, directory: Path, hear: Callable[[int, str], None], say: Callable[[str], None]
) -> FleetEnding:
    place, halt = launch.place, launch.halt
    async with AsyncExitStack() as stack:
        preparing = asyncio.ensure_future(stack.enter_async_context(place.starts(launch, board.config, directory, say)))
        try:
            await until_any(preparing, halt.asked)
        finally:
            asked = not preparing.done()
            preparing.cancel()  # which does nothing to what is prepared
            await asyncio.wait({preparing})
        if asked:
            if not preparing.cancelled():
                preparing.exception()  # what went wrong meanwhile is of no interest any more
            return FleetEnding((), halt.asked.result())
        return await run_fleet(
            preparing.result(), hear, halt=halt, can_stop=board.has_begun, patience_seconds=place.patience_seconds
        )


def node_command(launch: Launch, directory: Path, peers: Path, rank: int) -> Command:
    words = ["--json", "--peers", str(peers), "--config", str(directory / "experiment.yaml"), "--rank", str(rank)]
    words += ["--run-directory", str(directory)]
    words += ["--resume", str(launch.resume)] if launch.resume else []
    # A model or data of the user's own is looked for beside the experiment, and here.
    import_from = [str(launch.experiment.resolve().parent), str(Path.cwd())]
    task = Task("ringwide.node", words, import_from, title=f"ringwide-{rank}")
    return Command(task, directory / f"node-{rank}.stderr.log")


async def _shown(board: Board, view: View, halt: StopSignals, fleet: Coroutine[Any, Any, FleetEnding]) -> FleetEnding:
    running = asyncio.ensure_future(fleet)
    try:
        while not running.done() and not halt.asked.done():
            view.tick()
            await until_any(running, halt.asked, seconds=LOOK_EVERY_SECONDS)
        if not running.done():
            view.say(STOPPING if board.has_begun() else ENDING)
            await asyncio.wait({running})
    finally:
        running.cancel()  # which does nothing to a fleet that has ended
        await asyncio.wait({running})
    return running.result()


def _outcome(board: Board, ending: FleetEnding) -> RunOutcome:
    stopped = any(result.stopped_by for result in board.results.values())
    missing = _missing(board)
    if ending.signal and (stopped or missing):
        return RunOutcome("stopped", "; ".join(filter(None, [name_of_signal(ending.signal), ending.trouble])))
    if missing:
        raise RingwideError(f"node {missing[0]} ended well, but without a result")
    return RunOutcome("complete")


def _missing(board: Board) -> list[int]:
    """Who left no result."""
    return sorted(set(range(board.nodes)) - set(board.results))


def _tell(board: Board, ending: FleetEnding, outcome: RunOutcome, out: TextIO) -> None:
    if outcome.status == "stopped":  # a signal may also come when all is done
        print(f"stopped by {name_of_signal(ending.signal)} after step {board.step}", file=out)
    if ending.trouble:
        print(f"ringwide: warning: {ending.trouble}", file=sys.stderr)
    if board.config.logging != "silent":
        for remark in summary.remarks({exit.rank: exit.last_words for exit in ending.exits}):
            print(remark, file=sys.stderr)
    if board.results:
        said = [summary.table(board.results), summary.totals(board.results), summary.check_equal(board.results)]
        print(*(said if not _missing(board) else said[:-1]), sep="\n", file=out)


# A whole experiment: one run, or one for each variant of its sweep.


async def run_experiment(
    path: Path,
    out: TextIO,
    *,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    resume: Path | None = None,
    place: Callable[[], AbstractContextManager[NodeHost]] = lambda: nullcontext(ThisMachine()),
) -> int:
    """`place`: where the nodes run, asked for when the experiment is known to be right."""
    variants = load_variants(path, overrides)
    _check_listen(path, variants)
    if resume is not None:
        _check_resume(resume, variants)
    if dry_run:
        from ringwide.experiment.outline import outline

        print(outline(variants), file=out)
        return 0
    # In this order: libraries that a place needs take signals for themselves.
    with place() as where, halted_by_signals() as halt:
        launch = Launch(path, out, halt, resume, where)
        outcome = await (_run_sweep(launch, variants) if variants[0].label else _run_one(launch, variants[0]))
        if outcome.error:
            raise outcome.error
        return ENDED_BY_SIGNAL + halt.asked.result() if halt.asked.done() else 0


def _check_listen(path: Path, variants: Sequence[Variant]) -> None:
    if listen := next((variant.config.ring.listen for variant in variants if variant.config.ring.listen), None):
        raise ConfigError(
            f"{path}: ring.listen: {listen!r}: all nodes would listen there; leave it out, as `run` finds a free port"
            " for each (it is for a node that is started alone)"
        )


def _check_resume(resume: Path, variants: Sequence[Variant]) -> None:
    if len(variants) > 1:
        raise ConfigError(
            f"--resume {resume}: a sweep cannot be resumed; resume one of its runs, with --set sweep={{}}"
        )
    if not resume.is_dir():
        raise ConfigError(f"--resume {resume}: there is no such directory; name that of a run, as in runs/NAME-TIME")


async def _run_one(launch: Launch, variant: Variant) -> RunOutcome:
    return await run_variant(launch, variant, new_directory(variant.config, datetime.now()))


async def _run_sweep(launch: Launch, variants: Sequence[Variant]) -> RunOutcome:
    sweep = _Sweep(variants)
    for number, variant in enumerate(variants, start=1):
        if variant.config.logging != "silent":
            print(f"variant {number} of {len(variants)}: {variant.label}", file=launch.out, flush=True)
        outcome = await run_variant(launch, variant, sweep.begin(variant))
        if outcome.status != "complete":
            return sweep.finish(
                RunOutcome(outcome.status, f"{variant.label}: {outcome.reason}", outcome.error), launch.out
            )
        await launch.halt.catch_up()
        if launch.halt.asked.done() and number < len(variants):
            reason = f"{name_of_signal(launch.halt.asked.result())} after {variant.label}"
            return sweep.finish(RunOutcome("stopped", reason), launch.out)
    return sweep.finish(RunOutcome("complete"), launch.out)


class _Sweep:
    """The directory of a sweep, with one below for each variant that was begun."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._config, self._keys = variants[0].config, _values_by_key(variants)
        self._silent = all(variant.config.logging == "silent" for variant in variants)
        self._started, self._began = datetime.now(), time.monotonic()
        self._directory = new_directory(self._config, self._started)
        self._runs: list[str] = []

    def begin(self, variant: Variant) -> Path:
        directory = self._directory / variant.slug
        directory.mkdir()
        self._runs.append(variant.slug)
        self._write("failed", UNFINISHED)
        return directory

    def finish(self, outcome: RunOutcome, out: TextIO) -> RunOutcome:
        from ringwide.experiment.report import write_report

        try:
            self._write(outcome.status, outcome.reason)
            report = write_report(self._directory)
        except (OSError, RingwideError) as error:
            return outcome if outcome.error else RunOutcome("failed", str(error), error)
        if not self._silent and not isinstance(outcome.error, OSError):
            print(_comparison(self._directory), f"report of all variants: {report}", sep="\n", file=out, flush=True)
        return outcome

    def _write(self, status: Status, reason: str) -> None:
        document = {
            "format": FORMAT,
            "name": self._config.name,
            "status": status,
            "reason": reason,
            "started": self._started.astimezone().isoformat(timespec="seconds"),
            "seconds": time.monotonic() - self._began,
            "sweep": self._keys,
            "runs": self._runs,
        }
        write_json(self._directory / RESULTS, document)


def _comparison(directory: Path) -> str:
    from ringwide.experiment.report import tables, writing
    from ringwide.experiment.report.run_files import read
    from ringwide.experiment.report.tables import text

    return text(tables.comparison(writing.all_runs([read(directory)])))


def _values_by_key(variants: Sequence[Variant]) -> dict[str, list[Any]]:
    found: dict[str, dict[str, Any]] = {}
    for variant in variants:
        for key, value in variant.changes.items():
            found.setdefault(key, {}).setdefault(repr(value), value)  # by text: true and 1 are equal, but not the same
    return {key: list(values.values()) for key, values in found.items()}
