"""One node of an experiment, as the command `node` runs it: heard by a launcher, or alone on a machine of its own."""

import asyncio
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TextIO

from ringwide.experiment import summary
from ringwide.experiment.board import Board
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.fleet import name_of_signal
from ringwide.experiment.node_messages import Message, encode
from ringwide.experiment.recorder import Recorder, new_directory
from ringwide.experiment.stop_signals import ENDED_BY_SIGNAL
from ringwide.experiment.sweep import Variant, write_document
from ringwide.experiment.view import view_for
from ringwide.experiment.worker import Worker, take_part
from ringwide.training.progress import Progress, Result, TrainingStep

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


@contextmanager
def log_file(path: Path | None) -> Iterator["LogFile"]:
    """Open for the length of the block; with no path, one that writes nothing."""
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
    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def hear(self, message: Message) -> None:
        if self._stream is None:
            return
        if isinstance(message, Progress):
            self._stream.writelines(map(_step_line, message.steps))
        else:
            self._stream.write(f"{type(message).__name__.lower()} {_pairs(message)}\n")
        self._stream.flush()


def _step_line(step: TrainingStep) -> str:
    return (
        f"step={step.number} epoch={step.epoch} seconds={step.seconds:.4f} loss={step.loss:.5f} samples={step.samples}"
        f" learning_rate={step.learning_rate:.6g} network_ms={step.network_seconds * 1e3:.3f}"
        f" hidden_ms={step.hidden_seconds * 1e3:.3f}\n"
    )


def _pairs(message: Message) -> str:
    return " ".join(f"{key}={value}" for key, value in asdict(message).items())


async def run_and_tell(part: Worker, variants: Sequence[Variant], directory: Path | None) -> int:
    """Say everything as JSON, one object a line: whoever listens, a launcher for example, records it."""
    for variant in variants:
        if code := await _run_told(part, variant.config, directory, lambda message: print(encode(message), flush=True)):
            return code
    return 0


async def run_quietly(part: Worker, variants: Sequence[Variant]) -> int:
    """Say nothing: rank 0 does, for all."""
    for variant in variants:
        if code := await _run_told(part, variant.config, None, lambda _: None):
            return code
    return 0


async def _run_told(
    part: Worker, config: ExperimentConfig, directory: Path | None, say: Callable[[Message], None]
) -> int:
    met = None
    if not part.speaks:
        met = await part.meet(config, None)
        directory = Path(config.report.directory, met.run)
    directory = directory or new_directory(config, datetime.now())
    with log_file(_log_path(config, directory, part.rank)) as log:

        def tell(message: Message) -> None:
            say(message)
            log.hear(message)

        result = (await take_part(part, config, directory, tell, met))[part.rank]
        tell(result)
    return _exit_code(result)


async def run_alone(part: Worker, variants: Sequence[Variant], out: TextIO) -> int:
    """Run every variant with the nodes on other machines, and leave the report here."""
    for number, variant in enumerate(variants, start=1):
        if len(variants) > 1 and variant.config.logging != "silent":
            print(f"variant {number} of {len(variants)}: {variant.label}", file=out, flush=True)
        if code := await _run_recorded(part, variant, out):
            return code
    return 0


async def _run_recorded(part: Worker, variant: Variant, out: TextIO) -> int:
    config = variant.config
    out = out if config.logging != "silent" else io.StringIO()
    directory = new_directory(config, datetime.now())
    write_document(directory / "experiment.yaml", variant.document)
    board = Board(config, nodes=1)
    with closing(Recorder(directory, board, label=variant.label)) as recorder:
        try:
            results = await _watched(part, board, recorder, out)
            for rank, each in results.items():
                recorder.hear(rank, each)
            equal = summary.check_equal(results)
        except asyncio.CancelledError:
            recorder.finish("stopped", "by a signal, before its first step or for the second time")
            raise
        except Exception as error:
            recorder.finish("failed", str(error))
            raise
        result = results[part.rank]
        summary.warn_of_losses(board)
        print(summary.table(results), summary.totals(results), equal, sep="\n", file=out)
        stopped = name_of_signal(result.stopped_by) if result.stopped_by else ""
        report = recorder.finish("stopped" if stopped else "complete", stopped)
    print(f"report: {report}", file=out, flush=True)
    return _exit_code(result)


async def _watched(part: Worker, board: Board, recorder: Recorder, out: TextIO) -> dict[int, Result]:
    directory = recorder.directory
    with view_for(board, out) as view, log_file(_log_path(board.config, directory, part.rank)) as log:

        def tell(message: Message) -> None:
            recorder.hear(part.rank, message)
            log.hear(message)
            view.tick()

        return await take_part(part, board.config, directory, tell)


def _log_path(config: ExperimentConfig, directory: Path, rank: int) -> Path | None:
    return directory / f"node-{rank}.log" if config.logging == "verbose" else None


def _exit_code(result: Result) -> int:
    return ENDED_BY_SIGNAL + result.stopped_by if result.stopped_by else 0
