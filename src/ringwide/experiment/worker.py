"""Worker of an experiment: one node that finds its peers, trains with them and reports.

The command `node --config` runs it: for a launcher, which reads JSON lines, or on its own, with a report of its own.
"""

import asyncio
import io
import logging
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TextIO

import numpy as np

from ringwide.config.ring_config import RingConfig
from ringwide.config.validation import DECIDES_BITS, fields_with
from ringwide.errors import ConfigError
from ringwide.experiment import summary
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.find_peers import FoundPeers, PeerFinder
from ringwide.experiment.fleet import name_of_signal
from ringwide.experiment.node_messages import NAME_OF, Message, decode, encode
from ringwide.experiment.recorder import LATEST, Recorder, latest_run, new_directory, require_run
from ringwide.experiment.run_state import Board
from ringwide.experiment.stop_signals import ENDED_BY_SIGNAL, NodeStop
from ringwide.experiment.sweep import Variant, write_document
from ringwide.experiment.view import view_for
from ringwide.observe.statistics import peak_bytes, shared_out_bytes
from ringwide.ring import Ring, join
from ringwide.training.progress import Progress, Result, TrainingStep


@dataclass(frozen=True, slots=True)
class Latest:
    """The last run with a checkpoint. Rank 0 finds it, as only it has the file that makes a checkpoint complete."""

    since: float = 0.0
    required: bool = True  # else a run that has none begins anew

    async def find(self, ring: Ring, config: ExperimentConfig) -> Path | None:
        from ringwide.training.agreement import gather_texts, together

        def found() -> Path | None:
            return require_run(LATEST, config) if self.required else latest_run(config, since=self.since)

        ours = await together(ring, lambda: found() if ring.rank == 0 else None)
        path = (await gather_texts(ring, str(ours or "")))[0]
        return Path(path) if path else None


@dataclass(frozen=True, slots=True)
class Worker:
    """One node of an experiment: its rank, how it finds its peers, and how it is asked to stop."""

    rank: int
    peers: PeerFinder
    experiment: Path  # the file, named in errors
    stopping: NodeStop
    resume: "Path | Latest | None" = None
    run_id: str = ""  # from a launcher

    @property
    def reports(self) -> bool:
        """Whether this node shows and records the run. Of nodes started by one command only rank 0 does."""
        return self.rank == 0 or not self.peers.together

    async def find_peers(self, config: ExperimentConfig, run: str | None) -> FoundPeers:
        if self.peers.size != config.nodes:
            raise ConfigError(
                f"{self.experiment}: nodes: {config.nodes}: but {self.peers.counted_in}; make them equal, "
                f"as with --set nodes={self.peers.size}"
            )
        return await self.peers.find(config.ring, run)


# -- ways to run: for a launcher, silently, or with a report of its own


async def run_and_tell(worker: Worker, variants: Sequence[Variant], directory: Path | None) -> int:
    """Run every variant and print each message as a line of JSON. The reader, such as a launcher, records them."""
    for variant in variants:
        if code := await _run_told(
            worker, variant.config, directory, lambda message: print(encode(message), flush=True)
        ):
            return code
    return 0


async def run_quietly(worker: Worker, variants: Sequence[Variant]) -> int:
    """Run every variant without output: rank 0 reports for all."""
    for variant in variants:
        if code := await _run_told(worker, variant.config, None, lambda _: None):
            return code
    return 0


async def run_alone(worker: Worker, variants: Sequence[Variant], out: TextIO) -> int:
    """Run every variant with peers on other machines, and write the report here."""
    for number, variant in enumerate(variants, start=1):
        if len(variants) > 1 and variant.config.logging != "silent":
            print(f"variant {number} of {len(variants)}: {variant.label}", file=out, flush=True)
        if code := await _run_recorded(worker, variant, out):
            return code
    return 0


async def _run_told(
    worker: Worker, config: ExperimentConfig, directory: Path | None, say: Callable[[Message], None]
) -> int:
    found = None
    if not worker.reports:
        found = await worker.find_peers(config, None)
        directory = Path(config.report.directory, found.run)
    directory = directory or new_directory(config, datetime.now())
    with log_file(_log_path(config, directory, worker.rank)) as log:

        def tell(message: Message) -> None:
            say(message)
            log.hear(message)

        result = (await run_worker(worker, config, directory, tell, found))[worker.rank]
        tell(result)
    return _exit_code(result)


async def _run_recorded(worker: Worker, variant: Variant, out: TextIO) -> int:
    config = variant.config
    out = out if config.logging != "silent" else io.StringIO()
    directory = new_directory(config, datetime.now())
    write_document(directory / "experiment.yaml", variant.document)
    board = Board(config, nodes=1)
    with closing(Recorder(directory, board, label=variant.label)) as recorder:
        try:
            results = await _watched(worker, board, recorder, out)
            for rank, each in results.items():
                recorder.hear(rank, each)
            equal = summary.check_equal(results)
        except asyncio.CancelledError:
            recorder.finish("stopped", "by a signal, before its first step or for the second time")
            raise
        except Exception as error:
            if not recorder.removed_after(error):
                recorder.finish("failed", str(error))
            raise
        result = results[worker.rank]
        summary.warn_of_losses(board)
        print(summary.table(results), summary.totals(results), equal, sep="\n", file=out)
        stopped = name_of_signal(result.stopped_by) if result.stopped_by else ""
        report = recorder.finish("stopped" if stopped else "complete", stopped)
    print(f"report: {report}", file=out, flush=True)
    return _exit_code(result)


async def _watched(worker: Worker, board: Board, recorder: Recorder, out: TextIO) -> dict[int, Result]:
    directory = recorder.directory
    with view_for(board, out) as view, log_file(_log_path(board.config, directory, worker.rank)) as log:

        def tell(message: Message) -> None:
            recorder.hear(worker.rank, message)
            log.hear(message)
            view.tick()

        return await run_worker(worker, board.config, directory, tell)


def _log_path(config: ExperimentConfig, directory: Path, rank: int) -> Path | None:
    return directory / f"node-{rank}.log" if config.logging == "verbose" else None


def _exit_code(result: Result) -> int:
    return ENDED_BY_SIGNAL + result.stopped_by if result.stopped_by else 0


# -- training on the ring


async def run_worker(
    worker: Worker,
    config: ExperimentConfig,
    directory: Path,
    tell: Callable[[Message], None],
    found: FoundPeers | None = None,
) -> dict[int, Result]:
    """Train with the peers and return the results of all ranks. `tell` gets the messages of this rank only."""
    found = found or await worker.find_peers(config, directory.name)
    # Imported before joining: it takes seconds, in which a member of the ring would keep its peers waiting.
    from ringwide.experiment import preload  # noqa: F401
    from ringwide.training.checkpoint import Checkpoints
    from ringwide.training.loop import train

    checkpoints = None
    if config.checkpoint.every_steps is not None:
        where = Path(config.checkpoint.directory or directory / "checkpoints")
        checkpoints = Checkpoints(where, every_steps=config.checkpoint.every_steps, keep=config.checkpoint.keep)
    # A rank that is left over from another run cannot join this one.
    run_id = config.ring.run_id or worker.run_id or (directory.name if worker.peers.together else "")
    ring_config = config.ring.model_copy(update={"run_id": run_id})
    async with join(rank=worker.rank, peers=found.peers, config=ring_config, listener=found.listener) as ring:
        stop = worker.stopping.after_a_step()
        resume = await worker.resume.find(ring, config) if isinstance(worker.resume, Latest) else worker.resume
        result = await train(
            ring,
            config.training,
            tell,
            stop=stop,
            checkpoints=checkpoints,
            resume=resume,
            ring_settings=config.ring.model_dump(mode="json", include=set(fields_with(RingConfig, DECIDES_BITS))),
        )
        siblings = config.nodes if multiprocessing.parent_process() else 0  # forked by a launcher, or started alone
        return await _everyones(ring, await _with_memory(ring, result, siblings))


async def _with_memory(ring: Ring, result: Result, siblings: int) -> Result:
    """Measure memory between two barriers: a shared page is divided among the processes that map it at that moment."""
    await ring.barrier()
    memory = shared_out_bytes(siblings)
    torch = shared_out_bytes(siblings, of_files_in=Path(sys.modules["torch"].__file__ or "").parent)
    await ring.barrier()
    return replace(result, memory_bytes=memory, peak_memory_bytes=peak_bytes(), torch_memory_bytes=torch)


async def _everyones(ring: Ring, result: Result) -> dict[int, Result]:
    """Gather the results of all ranks, as JSON padded to equal length."""
    ours = encode(result).encode()
    longest = max(int(length[0]) for length in await ring.all_gather(np.array([len(ours)])))
    padded = np.frombuffer(ours.ljust(longest), np.uint8)
    told = [decode(bytes(theirs).decode(errors="replace")) for theirs in await ring.all_gather(padded)]
    return {rank: each for rank, each in enumerate(told) if isinstance(each, Result)}


# -- log file of a node (logging: verbose)

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


@contextmanager
def log_file(path: Path | None) -> Iterator["LogFile"]:
    """Log file that is open for the length of the block. Without a path it writes nothing."""
    if path is None:
        yield LogFile(None)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(FORMAT))
    logger = logging.getLogger("ringwide")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield LogFile(handler.stream)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


class LogFile:
    """Messages of a node as lines of key=value."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def hear(self, message: Message) -> None:
        if self._stream is None:
            return
        if isinstance(message, Progress):
            self._stream.writelines(map(_step_line, message.steps))
        else:
            self._stream.write(f"{NAME_OF[type(message)]} {_pairs(message)}\n")
        self._stream.flush()


def _step_line(step: TrainingStep) -> str:
    norm = "" if step.gradient_norm is None else f" gradient_norm={step.gradient_norm:.6g}"
    return (
        f"step={step.number} epoch={step.epoch} seconds={step.seconds:.4f} loss={step.loss:.5f} samples={step.samples}"
        f" learning_rate={step.learning_rate:.6g} network_ms={step.network_seconds * 1e3:.3f}"
        f" hidden_ms={step.hidden_seconds * 1e3:.3f}{norm}\n"
    )


def _pairs(message: Message) -> str:
    return " ".join(f"{key}={value}" for key, value in asdict(message).items())
