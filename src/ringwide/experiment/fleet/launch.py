"""One run: its nodes started, here or elsewhere, watched, recorded, and summed up."""

import asyncio
import io
import random
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TextIO

from ringwide.errors import RingwideError
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.file.variants import Variant, write_document
from ringwide.experiment.fleet.fleet import Ending, NodeFailed, run_fleet
from ringwide.experiment.fleet.nursery import Task
from ringwide.experiment.fleet.ports import free_ports, write_peers
from ringwide.experiment.fleet.process import Command
from ringwide.experiment.fleet.seam import Start, name_of_signal
from ringwide.experiment.halt import Halt, until_any
from ringwide.experiment.messages import decode
from ringwide.experiment.record.recorder import Recorder, Status
from ringwide.experiment.watch import summary
from ringwide.experiment.watch.board import Board
from ringwide.experiment.watch.view import LOOK_EVERY_SECONDS, View, view_for

STOPPING = "stopping at the end of this step, for the report; a second signal ends all at once"
ENDING = "ending the nodes, which have not begun"
UNREAD = "nobody read its output"


class Place(Protocol):
    """Where nodes run: each a process of this machine, or somewhere in a cluster."""

    patience_seconds: float
    """How much later it may be known that a node is gone than that others have lost it."""

    def starts(
        self, launch: "Launch", config: ExperimentConfig, directory: Path, say: Callable[[str], None]
    ) -> AbstractAsyncContextManager[Sequence[Start]]:
        """What starts each node, by rank; what it needs is there for the length of the block."""
        ...


class Here:
    patience_seconds = 0.0

    @asynccontextmanager
    async def starts(
        self, launch: "Launch", config: ExperimentConfig, directory: Path, say: Callable[[str], None]
    ) -> AsyncIterator[Sequence[Start]]:
        with TemporaryDirectory(prefix="ringwide-") as temporary:
            peers = Path(temporary, "peers.txt")
            write_peers(peers, free_ports(config.nodes, random.Random()))
            yield [node_command(launch, directory, peers, rank) for rank in range(config.nodes)]


@dataclass(frozen=True, slots=True)
class Launch:
    """What all variants of an experiment have in common."""

    experiment: Path
    out: TextIO
    halt: Halt
    resume: Path | None = None
    place: Place = field(default_factory=Here)


@dataclass(frozen=True, slots=True)
class Outcome:
    status: Status
    reason: str = ""
    error: Exception | None = None


async def run_variant(launch: Launch, variant: Variant, directory: Path) -> Outcome:
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
            outcome = Outcome("failed", error.reason, error)
        except RingwideError as error:
            outcome = Outcome("failed", str(error), error)
        except BrokenPipeError as error:
            outcome = Outcome("stopped", UNREAD, error)
        except OSError as error:
            outcome = Outcome("failed", f"its output cannot be written: {error.strerror}", error)
        summary.warn_of_losses(board)
        try:
            report = recorder.finish(outcome.status, outcome.reason)
        except RingwideError as error:
            return outcome if outcome.error else Outcome("failed", str(error), error)
    if not isinstance(outcome.error, OSError):
        print(f"report: {report}", file=out, flush=True)
    return outcome


async def _watched(launch: Launch, board: Board, recorder: Recorder, out: TextIO) -> Ending:
    def hear(rank: int, line: str) -> None:
        if message := decode(line):
            recorder.hear(rank, message)

    with view_for(board, out) as view:
        return await _shown(board, view, launch.halt, _run(launch, board, recorder.directory, hear, view.say))


async def _run(
    launch: Launch, board: Board, directory: Path, hear: Callable[[int, str], None], say: Callable[[str], None]
) -> Ending:
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
            return Ending((), halt.asked.result())
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


async def _shown(board: Board, view: View, halt: Halt, fleet: Coroutine[Any, Any, Ending]) -> Ending:
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


def _outcome(board: Board, ending: Ending) -> Outcome:
    stopped = any(result.stopped_by for result in board.results.values())
    missing = _missing(board)
    if ending.signal and (stopped or missing):
        return Outcome("stopped", "; ".join(filter(None, [name_of_signal(ending.signal), ending.trouble])))
    if missing:
        raise RingwideError(f"node {missing[0]} ended well, but without a result")
    return Outcome("complete")


def _missing(board: Board) -> list[int]:
    """Who left no result."""
    return sorted(set(range(board.nodes)) - set(board.results))


def _tell(board: Board, ending: Ending, outcome: Outcome, out: TextIO) -> None:
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
