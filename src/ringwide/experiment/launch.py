"""Launcher of an experiment: starts its nodes, watches and records them, and sums up each run.

`run_experiment` is the entry. An experiment is one run, or one for each variant of its sweep.
"""

import asyncio
import io
import random
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
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TextIO

from ringwide.errors import ConfigError, RingwideError, require_torch
from ringwide.experiment import summary
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.find_peers import free_ports, write_peers
from ringwide.experiment.fleet import Command, FleetEnding, NodeFailed, StartNode, name_of_signal, run_fleet
from ringwide.experiment.forkserver import Task
from ringwide.experiment.node_messages import decode
from ringwide.experiment.recorder import (
    FORMAT,
    RESULTS,
    UNFINISHED,
    Recorder,
    Status,
    has_checkpoint,
    new_directory,
    require_run,
    write_json,
)
from ringwide.experiment.run_state import Board
from ringwide.experiment.stop_signals import ENDED_BY_SIGNAL, StopSignals, stop_on_signals, until_any
from ringwide.experiment.sweep import Variant, load_variants, write_document
from ringwide.experiment.view import LOOK_EVERY_SECONDS, View, view_for

STOPPING = "stopping after this step, then writing the report; a second signal ends all nodes at once"
ENDING = "ending the nodes, which have not begun to train"
UNREAD = "nobody read its output"


class NodeHost(Protocol):
    """Place where nodes run: processes on this machine, or machines of a cluster."""

    patience_seconds: float
    """Time to wait for the node that failed first, once others have reported it lost."""

    def starts(
        self, launch: "Launch", config: ExperimentConfig, directory: Path, say: Callable[[str], None]
    ) -> AbstractAsyncContextManager[Sequence[StartNode]]:
        """One `StartNode` per rank. Files and reservations that the nodes need exist for the length of the block."""
        ...


class ThisMachine:
    """Host of nodes that are forked on this machine and find each other on loopback."""

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
    """Settings that all variants of an experiment share."""

    experiment: Path
    out: TextIO
    stop: StopSignals
    resume: Path | None = None
    restarts: int = 0  # of a run in which a node crashes or is lost
    host: NodeHost = field(default_factory=ThisMachine)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Status of a finished run, with the reason and the error if it did not complete."""

    status: Status
    reason: str = ""
    error: Exception | None = None


# -- the experiment


async def run_experiment(
    path: Path,
    out: TextIO,
    *,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    resume: Path | None = None,
    restarts: int = 0,
    host: Callable[[], AbstractContextManager[NodeHost]] = lambda: nullcontext(ThisMachine()),
) -> int:
    """Run every variant and return the exit code. `host` is opened only after the whole experiment was checked."""
    require_torch("an experiment")
    variants = load_variants(path, overrides)
    _check_listen(path, variants)
    if resume is not None:
        _check_alone(f"--resume {resume}", variants)
        resume = require_run(resume, variants[0].config)
    if restarts:
        _check_alone(f"--restarts {restarts}", variants)
    if dry_run:
        from ringwide.experiment.outline import outline

        print(outline(variants), file=out)
        return 0
    # In this order: a host may import libraries that install signal handlers, and ours must come last.
    with host() as node_host, stop_on_signals() as stop:
        launch = Launch(path, out, stop, resume, restarts, node_host)
        outcome = await (_run_sweep(launch, variants) if variants[0].label else _run_one(launch, variants[0]))
        if outcome.error:
            raise outcome.error
        return ENDED_BY_SIGNAL + stop.asked.result() if stop.asked.done() else 0


def _check_listen(path: Path, variants: Sequence[Variant]) -> None:
    if listen := next((variant.config.ring.listen for variant in variants if variant.config.ring.listen), None):
        raise ConfigError(
            f"{path}: ring.listen: {listen!r}: all nodes would listen there; leave it out, as `run` finds a free port"
            " for each (it is for a node that is started alone)"
        )


def _check_alone(option: str, variants: Sequence[Variant]) -> None:
    if len(variants) > 1:
        raise ConfigError(f"{option}: not for a sweep; name one of its runs, with --set sweep={{}}")


async def _run_one(launch: Launch, variant: Variant) -> RunOutcome:
    """Run a variant, and again from its last checkpoint if a node has crashed or was lost."""
    for restarts_left in range(launch.restarts, -1, -1):
        directory = new_directory(variant.config, datetime.now())
        outcome = await run_variant(launch, variant, directory)
        crashed = isinstance(outcome.error, NodeFailed) and outcome.error.exit_code != ConfigError.exit_code
        launch = replace(launch, resume=directory if has_checkpoint(directory) else launch.resume)
        if not crashed or launch.stop.asked.done():
            break
        begin = f"resumes from {launch.resume}" if launch.resume else "begins again: there is no checkpoint yet"
        if restarts_left:
            print(f"{outcome.error}\nrestart, {restarts_left} left: {begin}", file=sys.stderr, flush=True)
        elif launch.resume:
            print(f"to go on: python -m ringwide run {launch.experiment} --resume {launch.resume}", file=sys.stderr)
    return outcome


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
        await launch.stop.catch_up()
        if launch.stop.asked.done() and number < len(variants):
            reason = f"{name_of_signal(launch.stop.asked.result())} after {variant.label}"
            return sweep.finish(RunOutcome("stopped", reason), launch.out)
    return sweep.finish(RunOutcome("complete"), launch.out)


class _Sweep:
    """Directory of a sweep, with a subdirectory for each variant that was started."""

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
            found.setdefault(key, {}).setdefault(repr(value), value)  # by repr: True == 1, but not the same setting
    return {key: list(values.values()) for key, values in found.items()}


# -- one run


async def run_variant(launch: Launch, variant: Variant, directory: Path) -> RunOutcome:
    """Run one variant until it completes, stops or fails. In each case `directory`, which exists, gets a report."""
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
        if not variant.label and recorder.removed_after(outcome.error):
            return outcome
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
        return await _shown(board, view, launch.stop, _run(launch, board, recorder.directory, hear, view.say))


async def _run(
    launch: Launch, board: Board, directory: Path, hear: Callable[[int, str], None], say: Callable[[str], None]
) -> FleetEnding:
    host, stop = launch.host, launch.stop
    async with AsyncExitStack() as stack:
        preparing = asyncio.ensure_future(stack.enter_async_context(host.starts(launch, board.config, directory, say)))
        try:
            await until_any(preparing, stop.asked)
        finally:
            asked = not preparing.done()
            preparing.cancel()  # no effect if it is done
            await asyncio.wait({preparing})
        if asked:
            if not preparing.cancelled():
                preparing.exception()  # retrieved, so that asyncio does not log it
            return FleetEnding((), stop.asked.result())
        return await run_fleet(
            preparing.result(), hear, stop=stop, can_stop=board.has_begun, patience_seconds=host.patience_seconds
        )


async def _shown(board: Board, view: View, stop: StopSignals, fleet: Coroutine[Any, Any, FleetEnding]) -> FleetEnding:
    running = asyncio.ensure_future(fleet)
    try:
        while not running.done() and not stop.asked.done():
            view.tick()
            await until_any(running, stop.asked, seconds=LOOK_EVERY_SECONDS)
        if not running.done():
            view.say(STOPPING if board.has_begun() else ENDING)
            await asyncio.wait({running})
    finally:
        running.cancel()  # no effect on a fleet that has ended
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
    """Ranks that left no result."""
    return sorted(set(range(board.nodes)) - set(board.results))


def _tell(board: Board, ending: FleetEnding, outcome: RunOutcome, out: TextIO) -> None:
    if outcome.status == "stopped":  # a signal that came after the last step stopped nothing
        print(f"stopped by {name_of_signal(ending.signal)} after step {board.step}", file=out)
    if ending.trouble:
        print(f"ringwide: warning: {ending.trouble}", file=sys.stderr)
    if board.config.logging != "silent":
        for remark in summary.remarks({exit.rank: exit.last_lines for exit in ending.exits}):
            print(remark, file=sys.stderr)
    if board.results:
        said = [summary.table(board.results), summary.totals(board.results), summary.check_equal(board.results)]
        print(*(said if not _missing(board) else said[:-1]), sep="\n", file=out)


# -- nodes on this machine


def node_command(launch: Launch, directory: Path, peers: Path, rank: int) -> Command:
    arguments = ["--json", "--peers", str(peers), "--config", str(directory / "experiment.yaml"), "--rank", str(rank)]
    arguments += ["--run-directory", str(directory), "--run-id", directory.name]
    arguments += ["--resume", str(launch.resume)] if launch.resume else []
    # Modules with the user's model or data are looked for next to the experiment, then in the working directory.
    import_from = [str(launch.experiment.resolve().parent), str(Path.cwd())]
    task = Task("ringwide.node", arguments, import_from, title=f"ringwide-{rank}")
    return Command(task, directory / f"node-{rank}.stderr.log")
