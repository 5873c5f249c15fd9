"""Writer of reports: report.md and report.html of a run, a sweep or a comparison, and the command `report`."""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO

from ringwide.errors import ConfigError
from ringwide.experiment.report import contents as told
from ringwide.experiment.report import tables
from ringwide.experiment.report.contents import Contents
from ringwide.experiment.report.drawing import Plot
from ringwide.experiment.report.metrics import Metrics, read_metrics
from ringwide.experiment.report.run_files import NamedRuns, Run, Sweep, read, with_totals
from ringwide.experiment.report.tables import text

TEMPLATE = "page.html.j2"


PAGE = "report.html"

logger = logging.getLogger("ringwide.experiment")


def report(directories: Sequence[Path], page: Path | None, out: TextIO, *, now: datetime) -> int:
    """Command `report`: redraw the report of one run or sweep, or compare several."""
    if page is not None and page.suffix != ".html":
        raise ConfigError(f"--out {page}: should end in .html; the same tables are written next to it as .md")
    found = [read(directory) for directory in directories]
    if len(found) == 1:
        written = write_found(found[0], page or directories[0] / PAGE)
    else:
        default = directories[0].absolute().parent / f"comparison-{now:%Y%m%d-%H%M%S}.html"
        written = write_comparison(all_runs(found), page or default)
    if len(found) > 1 or not isinstance(found[0], Run):
        _print_comparison(all_runs(found), out)
    print(f"report: {written}", file=out)
    return 0


def _print_comparison(runs: NamedRuns, out: TextIO) -> None:
    if runs:
        print(f"{text(tables.comparison(runs))}\n", file=out)


def write_report(directory: Path) -> Path:
    """Write report.md and, if the run wants it, report.html. Returns the path of the page, or else of the text."""
    return write_found(read(directory), directory / PAGE)


def compare(directories: Sequence[Path], out: Path) -> Path:
    """Write a page, with Markdown next to it, that compares runs and all runs of sweeps."""
    return write_comparison(all_runs([read(directory) for directory in directories]), out)


def write_found(found: Run | Sweep, page: Path) -> Path:
    if isinstance(found, Sweep):
        return write_comparison(all_runs([found]), page, sweep=found)
    metrics = read_metrics(found.directory)
    run = with_missing_nodes(found, metrics)
    return _write(told.of_run(run, metrics), page, lambda: _run_plots(run, metrics), html=wants_html([run]))


def write_comparison(runs: NamedRuns, page: Path, *, sweep: Sweep | None = None) -> Path:
    plain = [run for _, run in runs]
    contents = told.of_comparison(runs, links=told.links_to(plain, page.parent), sweep=sweep)
    return _write(contents, page, lambda: _comparison_plots(runs), html=sweep is None or wants_html(plain))


def all_runs(found: Sequence[Run | Sweep]) -> NamedRuns:
    runs = [run for each in found for run in (each.runs if isinstance(each, Sweep) else (each,))]
    return told.named([with_missing_nodes(run, read_metrics(run.directory)) if run.missing else run for run in runs])


def with_missing_nodes(run: Run, metrics: Metrics) -> Run:
    """Run with rows for ranks that left no result, from their metrics."""
    return with_totals(run, (*run.nodes, *metrics.nodes_without_result(run))) if run.missing else run


def wants_html(runs: Sequence[Run]) -> bool:
    return not runs or any(run.setting("report.html") is not False for run in runs)


def _write(contents: Contents, page: Path, plots: Callable[[], list[Plot]], *, html: bool) -> Path:
    text = page.with_suffix(".md")
    _replace(text, told.as_text(contents))
    return _write_page(contents, page, plots) or text if html else text


def _write_page(contents: Contents, page: Path, plots: Callable[[], list[Plot]]) -> Path | None:
    try:
        whole = html(contents, plots())
    except ModuleNotFoundError as error:
        logger.warning(
            "%s was not drawn, as %s is not installed: pip install 'ringwide[experiments]'", page, error.name
        )
        return None
    _replace(page, whole)
    return page


def html(contents: Contents, plots: Sequence[Plot]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("ringwide.experiment.report", "templates")
    environment = Environment(
        autoescape=True, loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(TEMPLATE).render(contents=contents, plots=plots)


def _run_plots(run: Run, metrics: Metrics) -> list[Plot]:
    from ringwide.experiment.report.plots import of_run

    return of_run(run, metrics)


def _comparison_plots(runs: NamedRuns) -> list[Plot]:
    from ringwide.experiment.report.plots import of_comparison

    return of_comparison(runs)


def _replace(path: Path, text: str) -> None:
    """Replace the file atomically."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise ConfigError(f"{path}: the report cannot be written: {error.strerror}") from error
