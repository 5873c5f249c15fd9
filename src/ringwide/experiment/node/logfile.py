"""The log file of one node in verbose mode: every step in a line, and what the rooms below have to say.

Written when the node tells of its steps, a few times a second, many lines at once: to open, format and flush for every
step is what makes logging slow.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from ringwide.experiment.messages import Message
from ringwide.training.progress import Progress, TrainingStep

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
