"""`python -m ringwide report`."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TextIO

from ringwide.errors import ConfigError
from ringwide.experiment.report import tables, writing
from ringwide.experiment.report.reading import NamedRuns, Run, read
from ringwide.experiment.report.table import text


def report(directories: Sequence[Path], page: Path | None, out: TextIO, *, now: datetime) -> int:
    """One run or sweep: draw its own report anew. Several: compare them."""
    if page is not None and page.suffix != ".html":
        raise ConfigError(f"--out {page}: should end in .html; the same tables are written beside it as .md")
    found = [read(directory) for directory in directories]
    if len(found) == 1:
        written = writing.write_found(found[0], page or directories[0] / writing.PAGE)
    else:
        beside = directories[0].absolute().parent / f"comparison-{now:%Y%m%d-%H%M%S}.html"
        written = writing.write_comparison(writing.all_runs(found), page or beside)
    if len(found) > 1 or not isinstance(found[0], Run):
        _print_comparison(writing.all_runs(found), out)
    print(f"report: {written}", file=out)
    return 0


def _print_comparison(runs: NamedRuns, out: TextIO) -> None:
    if runs:
        print(f"{text(tables.comparison(runs))}\n", file=out)
