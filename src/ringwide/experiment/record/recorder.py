"""What a run leaves behind in its directory: metrics.jsonl as it goes, results.json and the report at its end.

results.json exists from the start, so that even a run whose launcher was killed can be looked at.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from ringwide.errors import ConfigError, RingwideError
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.messages import Message, as_json
from ringwide.experiment.record import figures
from ringwide.experiment.record.machine import machine, versions
from ringwide.experiment.watch.board import Board
from ringwide.training.progress import Evaluation, Progress, Step

FORMAT = 1
FLUSH_EVERY_SECONDS = 1.0
METRICS, RESULTS = "metrics.jsonl", "results.json"
UNFINISHED = "it has not ended: it still runs, or its launcher was killed"
Status = Literal["complete", "stopped", "failed"]


def directory_for(config: ExperimentConfig, now: datetime) -> Path:
    """One that does not exist yet."""
    first = Path(config.report.directory, f"{config.name}-{now:%Y%m%d-%H%M%S}")
    path, number = first, 2
    while os.path.lexists(path):
        path, number = first.with_name(f"{first.name}-{number}"), number + 1
    return path


def new_directory(config: ExperimentConfig, now: datetime) -> Path:
    while True:
        path = directory_for(config, now)
        try:
            path.mkdir(parents=True)
        except FileExistsError:  # another run took it at this moment
            continue
        except OSError as error:
            raise ConfigError(
                f"report.directory: {config.report.directory!r}: {path} cannot be made: {error.strerror};"
                " give one that can be written"
            ) from error
        return path


def write_json(path: Path, document: dict[str, Any]) -> None:
    """All of it or nothing: who reads meanwhile, or after a crash, finds the old one."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


class Recorder:
    def __init__(
        self,
        directory: Path,
        board: Board,
        *,
        label: str = "",
        started: datetime | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The directory exists."""
        self.directory, self._board, self._label = directory, board, label
        self._started, self._clock = started or datetime.now(), clock
        self._began = self._flushed = clock()
        with self._writing(METRICS):
            self._metrics = (directory / METRICS).open("w", encoding="utf-8", buffering=1 << 16)
        self._write_results("failed", UNFINISHED)

    def hear(self, rank: int, message: Message) -> None:
        news = self._metrics_of(rank, message)
        self._board.hear(rank, message)
        with self._writing(METRICS):
            self._metrics.write(news)
            if self._clock() - self._flushed >= FLUSH_EVERY_SECONDS:
                self._flushed = self._clock()
                self._metrics.flush()

    def finish(self, status: Status, reason: str = "") -> Path:
        """Write what is known now, and the report of it. Returns where the report is."""
        from ringwide.experiment.report import write_report

        self.close()
        self._write_results(status, reason)
        return write_report(self.directory)

    def close(self) -> None:
        with self._writing(METRICS):
            self._metrics.close()

    def _metrics_of(self, rank: int, message: Message) -> str:
        match message:
            case Progress(steps=steps):
                return as_json("".join([_line(rank, step) for step in steps]))
            case Evaluation() if self._board.is_news(message):
                return json.dumps({"evaluation": True, **asdict(message)}) + "\n"
        return ""

    def _write_results(self, status: Status, reason: str) -> None:
        results = dict(sorted(self._board.results.items()))
        nodes = [figures.of_node(rank, result) for rank, result in results.items()]
        document = {
            "format": FORMAT,
            "name": self._board.config.name,
            "status": status,
            "reason": reason,
            "started": self._started.astimezone().isoformat(timespec="seconds"),
            "seconds": self._clock() - self._began,
            "label": self._label,
            "config": self._board.config.model_dump(mode="json"),
            "versions": versions(),
            "machine": machine(),
            "plan": asdict(self._board.plan) if self._board.plan else None,
            "nodes": nodes,
            "totals": figures.totals(results),
            "spread": figures.spread(nodes),
        }
        with self._writing(RESULTS):
            write_json(self.directory / RESULTS, document)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RingwideError(f"{self.directory / name}: cannot be written: {error.strerror}") from error


def _line(rank: int, step: Step) -> str:
    """By hand: `json` would take five times as long, and this is done for every step of every node."""
    return (
        f'{{"node": {rank}, "step": {step.number}, "epoch": {step.epoch}, "seconds": {step.seconds:.7g},'
        f' "loss": {step.loss:.7g}, "samples": {step.samples}, "learning_rate": {step.learning_rate:.7g},'
        f' "network_seconds": {step.network_seconds:.7g}, "hidden_seconds": {step.hidden_seconds:.7g}}}\n'
    )
