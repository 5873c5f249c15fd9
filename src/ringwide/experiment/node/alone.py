"""One node of an experiment, as the command `node` runs it: heard by a launcher, or alone on a machine of its own."""

import asyncio
import io
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TextIO

from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.file.variants import Variant, write_document
from ringwide.experiment.fleet.seam import name_of_signal
from ringwide.experiment.halt import ENDED_BY_SIGNAL
from ringwide.experiment.messages import Message, encode
from ringwide.experiment.node.logfile import log_file
from ringwide.experiment.node.part import Part, take_part
from ringwide.experiment.record.recorder import Recorder, new_directory
from ringwide.experiment.watch import summary
from ringwide.experiment.watch.board import Board
from ringwide.experiment.watch.view import view_for
from ringwide.training.progress import Result


async def run_and_tell(part: Part, variants: Sequence[Variant], directory: Path | None) -> int:
    """Say everything as JSON, one object a line: whoever listens, a launcher for example, records it."""
    for variant in variants:
        if code := await _run_told(part, variant.config, directory, lambda message: print(encode(message), flush=True)):
            return code
    return 0


async def run_quietly(part: Part, variants: Sequence[Variant]) -> int:
    """Say nothing: rank 0 does, for all."""
    for variant in variants:
        if code := await _run_told(part, variant.config, None, lambda _: None):
            return code
    return 0


async def _run_told(
    part: Part, config: ExperimentConfig, directory: Path | None, say: Callable[[Message], None]
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


async def run_alone(part: Part, variants: Sequence[Variant], out: TextIO) -> int:
    """Run every variant with the nodes on other machines, and leave the report here."""
    for number, variant in enumerate(variants, start=1):
        if len(variants) > 1 and variant.config.logging != "silent":
            print(f"variant {number} of {len(variants)}: {variant.label}", file=out, flush=True)
        if code := await _run_recorded(part, variant, out):
            return code
    return 0


async def _run_recorded(part: Part, variant: Variant, out: TextIO) -> int:
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


async def _watched(part: Part, board: Board, recorder: Recorder, out: TextIO) -> dict[int, Result]:
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
