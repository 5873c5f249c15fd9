"""A whole experiment: one run, or one for each variant of its sweep."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from ringwide.errors import ConfigError, RingwideError
from ringwide.experiment.fleet import name_of_signal
from ringwide.experiment.launch import Launch, NodeHost, RunOutcome, ThisMachine, run_variant
from ringwide.experiment.recorder import FORMAT, RESULTS, UNFINISHED, Status, new_directory, write_json
from ringwide.experiment.stop_signals import ENDED_BY_SIGNAL, halted_by_signals
from ringwide.experiment.sweep import Variant, load_variants


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
