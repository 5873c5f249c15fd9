"""Recorder of a run: writes metrics.jsonl as it goes, and results.json and the report at its end.

results.json exists from the start, so that a run whose launcher was killed can still be inspected.
"""

import glob
import json
import math
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from ringwide.errors import ConfigError, JoinError, RingwideError
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.node_messages import Message
from ringwide.experiment.run_state import Board
from ringwide.experiment.summary import figures_of_all, of_node, spread
from ringwide.training.progress import Evaluation, Progress, TrainingStep

FORMAT = 1
FLUSH_EVERY_SECONDS = 1.0
METRICS, RESULTS = "metrics.jsonl", "results.json"
ROOM_BYTES = 256 * 1024  # enough for results.json and the tables of the report
NOT_FINITE = re.compile(r": (?:nan|-?inf)\b")  # a float that `_line` wrote
UNFINISHED = "it has not finished: it is still running, or its launcher was killed"
Status = Literal["complete", "stopped", "failed"]


def directory_for(config: ExperimentConfig, now: datetime) -> Path:
    """Path for a new run that does not exist yet."""
    first = Path(config.report.directory, f"{config.name}-{now:%Y%m%d-%H%M%S}")
    path, number = first, 2
    while os.path.lexists(path):
        path, number = first.with_name(f"{first.name}-{number}"), number + 1
    return path


def new_directory(config: ExperimentConfig, now: datetime) -> Path:
    """Create the directory of a new run."""
    while True:
        path = directory_for(config, now)
        try:
            path.mkdir(parents=True)
        except FileExistsError:  # another run took it at this moment
            continue
        except OSError as error:
            raise ConfigError(
                f"report.directory: {config.report.directory!r}: {path} cannot be created: {error.strerror};"
                " name one that is writable"
            ) from error
        return path


LATEST = Path("latest")
"""Name for the last run of an experiment that has a checkpoint, with --resume."""
_COMPLETE = re.compile(r"step-\d+\.pt")


def latest_run(config: ExperimentConfig, *, since: float = 0.0) -> Path | None:
    """Directory of the last run of this experiment that has a complete checkpoint, written `since` then."""
    if config.checkpoint.directory is not None:
        found = [Path(config.checkpoint.directory)]
    else:
        runs = Path(config.report.directory).glob(f"{glob.escape(config.name)}-[0-9]*")
        found = [run for run in runs if run.name[len(config.name) :].strip("-0123456789") == ""]
    written = {run: _last_checkpoint(run) for run in found}
    return max((run for run in found if written[run] > since), key=lambda run: written[run], default=None)


def has_checkpoint(run: Path) -> bool:
    return _last_checkpoint(run) > 0


def _last_checkpoint(run: Path) -> float:
    """Time at which the last complete checkpoint of a run was written; 0: there is none."""
    directory = run / "checkpoints" if (run / "checkpoints").is_dir() else run
    names = os.listdir(directory) if directory.is_dir() else []
    return max((os.stat(directory / name).st_mtime for name in names if _COMPLETE.fullmatch(name)), default=0.0)


def require_run(resume: Path, config: ExperimentConfig) -> Path:
    """The run that --resume names, or the last one, if there is such a run."""
    if resume == LATEST:
        if (latest := latest_run(config)) is not None:
            return latest
        where = config.checkpoint.directory or f"{config.report.directory}/{config.name}-*"
        raise ConfigError(
            f"--resume latest: no run of {config.name!r} has a complete checkpoint ({where}); start without --resume,"
            " and with checkpoint.every_steps"
        )
    named = resume.is_file() and resume.match("step-*.pt") and not resume.match("*.rank-*")
    if not resume.is_dir() and not named:
        raise ConfigError(
            f"--resume {resume}: there is no such {'checkpoint' if resume.suffix == '.pt' else 'directory'}; name that"
            " of a run, as in runs/NAME-TIME, or a whole checkpoint in it, as in .../checkpoints/step-000000200.pt;"
            " or write `latest`"
        )
    return resume


def finite(value: Any) -> Any:
    """Copy with null for NaN and infinity: JSON has no word for them, and many readers refuse Python's."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: finite(each) for key, each in value.items()}
        case list() | tuple():
            return [finite(each) for each in value]
    return value


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replace the file atomically: a reader meanwhile, or after a crash, finds the old one."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(finite(document), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


class Recorder:
    """Files of one run, written from the messages of its nodes."""

    def __init__(
        self,
        directory: Path,
        board: Board,
        *,
        label: str = "",
        started: datetime | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`directory` exists already."""
        self.directory, self._board, self._label = directory, board, label
        self._started, self._clock = started or datetime.now(), clock
        self._began = self._flushed = clock()
        with self._writing(METRICS):
            self._metrics = (directory / METRICS).open("w", encoding="utf-8", buffering=1 << 16)
        self._write_results("failed", UNFINISHED)

    def hear(self, rank: int, message: Message) -> None:
        lines = self._metrics_of(rank, message)
        self._board.hear(rank, message)
        with self._writing(METRICS):
            self._metrics.write(lines)
            if self._clock() - self._flushed >= FLUSH_EVERY_SECONDS:
                self._flushed = self._clock()
                self._metrics.flush()

    def finish(self, status: Status, reason: str = "") -> Path:
        """Write the results and the report. Returns the path of the report.

        If metrics could not be written, the run has failed; that error is raised unless it had failed already.
        """
        from ringwide.experiment.report import write_report

        lost = self._close_metrics()
        if lost and status != "failed":
            self._write_results("failed", str(lost))
            write_report(self.directory)
            raise lost
        self._write_results(status, reason)
        return write_report(self.directory)

    def removed_after(self, error: Exception | None) -> bool:
        """Remove the directory, if this error refused the start: nothing was trained, and the error says it all."""
        refused = getattr(error, "exit_code", None) in (ConfigError.exit_code, JoinError.exit_code)
        if not refused or self._board.has_begun():
            return False
        self._metrics.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        return True

    def close(self) -> None:
        with self._writing(METRICS):
            self._metrics.close()

    def _close_metrics(self) -> RingwideError | None:
        """Close the file. Returns the error if some metrics are missing from it."""
        try:
            self.close()
        except RingwideError as error:
            with suppress(OSError):
                _make_room(self.directory / METRICS)
            return error
        return None

    def _metrics_of(self, rank: int, message: Message) -> str:
        match message:
            case Progress(steps=steps):
                return _with_nulls("".join([_line(rank, step) for step in steps]))
            case Evaluation() if self._board.is_news(message):
                return json.dumps(finite({"evaluation": True, **asdict(message)})) + "\n"
        return ""

    def _write_results(self, status: Status, reason: str) -> None:
        results = dict(sorted(self._board.results.items()))
        nodes = [of_node(rank, result) for rank, result in results.items()]
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
            "totals": figures_of_all(results),
            "spread": spread(nodes),
        }
        with self._writing(RESULTS):
            write_json(self.directory / RESULTS, document)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RingwideError(f"{self.directory / name}: cannot be written: {error.strerror}") from error


def _make_room(path: Path) -> None:
    """Free space on a full disk for the results: drop the last lines of the metrics."""
    with path.open("r+b") as file:
        file.seek(max(0, path.stat().st_size - ROOM_BYTES))
        if file.tell():
            file.readline()
        file.truncate()


def _with_nulls(lines: str) -> str:
    return NOT_FINITE.sub(": null", lines) if ": nan" in lines or "inf" in lines else lines


def _line(rank: int, step: TrainingStep) -> str:
    """Formatted by hand: `json` would take five times as long, and this runs for every step of every node."""
    norm = "" if step.gradient_norm is None else f', "gradient_norm": {step.gradient_norm:.7g}'
    return (
        f'{{"node": {rank}, "step": {step.number}, "epoch": {step.epoch}, "seconds": {step.seconds:.7g},'
        f' "loss": {step.loss:.7g}, "samples": {step.samples}, "learning_rate": {step.learning_rate:.7g},'
        f' "network_seconds": {step.network_seconds:.7g}, "hidden_seconds": {step.hidden_seconds:.7g}{norm}}}\n'
    )


# -- machine and versions

PACKAGES = ("ringwide", "torch", "numpy", "uvloop", "lz4", "pydantic", "scikit-learn")
CPU_FACTS = Path("/proc/cpuinfo")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, without those that are not installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str | int]:
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
    }


def _cpu() -> str:
    try:
        facts = CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        facts = []
    names = (line.partition(":")[2].strip() for line in facts if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
