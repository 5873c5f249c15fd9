"""Tables of a report, and their output as Markdown and as plain text."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringwide.experiment.report import quantities as fig
from ringwide.experiment.report import units
from ringwide.experiment.report.quantities import Figure, Reference
from ringwide.experiment.report.run_files import Figures, NamedRuns, NodeResult, Run

MARKDOWN_SPECIAL = "\\`*[]<>|"


@dataclass(frozen=True, slots=True)
class Table:
    """Table whose first `texts` columns are text, flush left; the others are figures, flush right."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    texts: int = 1
    links: tuple[str, ...] = ()  # link of each row's first cell, or empty

    def link(self, row: int) -> str:
        return self.links[row] if row < len(self.links) else ""


def markdown(table: Table) -> str:
    rows = [_markdown_row(table, number) for number in range(len(table.rows))]
    marks = ["---"] * table.texts + ["--:"] * (len(table.heads) - table.texts)
    lines = [f"## {as_markdown(table.title)}", "", _piped([as_markdown(head) for head in table.heads]), _piped(marks)]
    note = ["", as_markdown(table.note)] if table.note else []
    return "\n".join([*lines, *rows, *note]) + "\n"


def text(table: Table) -> str:
    lines = [table.heads, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.heads))]
    return "\n".join(_aligned(line, widths, table.texts) for line in lines)


def as_markdown(plain: str) -> str:
    """Escaped text: no cell can end its row, start a link or become HTML."""
    return "".join(f"\\{mark}" if mark in MARKDOWN_SPECIAL else mark for mark in " ".join(plain.split()))


def _markdown_row(table: Table, number: int) -> str:
    first, *rest = [as_markdown(cell) for cell in table.rows[number]]
    link = table.link(number)
    return _piped([f"[{first}](<{link}>)" if link else first, *rest])


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _aligned(cells: Sequence[str], widths: Sequence[int], texts: int) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells[:texts], widths[:texts], strict=True)]
    right = [cell.rjust(width) for cell, width in zip(cells[texts:], widths[texts:], strict=True)]
    return "  ".join([*left, *right]).rstrip()


NODE_COLUMNS = (
    fig.BATCHES,
    fig.EPOCHS,
    fig.LOSS,
    fig.ACCURACY,
    fig.PACE,
    fig.NETWORK,
    fig.HIDDEN,
    fig.CODEC_TIME,
    fig.RATIO,
    fig.SENT,
    fig.RECEIVED,
    fig.THROUGHPUT,
    fig.MEMORY,
    fig.PEAK_MEMORY,
)
SPREAD_ROWS = (
    fig.BATCHES,
    fig.PACE,
    fig.SAMPLES,
    fig.LOSS,
    fig.TEST_LOSS,
    fig.ACCURACY,
    fig.SECONDS,
    fig.NETWORK,
    fig.NETWORK_SHARE,
    fig.HIDDEN,
    fig.CODEC_TIME,
    fig.RATIO,
    fig.SENT,
    fig.RECEIVED,
    fig.THROUGHPUT,
    fig.MEMORY,
    fig.TORCH_MEMORY,
    fig.PEAK_MEMORY,
)
BESIDE_COLUMNS = (fig.BATCHES, fig.PACE, fig.THROUGHPUT, fig.NETWORK, fig.MEMORY, fig.RATIO, fig.LOSS)
OF_CODECS = (fig.CODEC_TIME, fig.RATIO)
LONG_NAMES = {fig.NETWORK_SHARE: "network time, of training time", fig.HIDDEN: "network time, hidden"}
SHOWN_ELSEWHERE = ("report.beside", "report.notes", "sweep")
NOT_COMPARED = ("name", "report", "sweep")
KEYS_IN_A_COMPARISON = 3
MEMORY_NOTE = "Memory is that at the end, pages that processes share divided among them (PSS)."
LOST_NOTE = "Nodes with * left no result: their figures are sums over the steps they reported."


def nodes(run: Run) -> Table:
    """Row for each rank, including ranks that left no result."""
    columns = NODE_COLUMNS if fig.encoded(run.nodes) else [column for column in NODE_COLUMNS if column not in OF_CODECS]
    ranks = sorted(run.nodes, key=lambda node: node.rank)
    rows = tuple((_rank(node), *(column.of(node.figures) for column in columns)) for node in ranks)
    note = MEMORY_NOTE if all(node.ended for node in ranks) else f"{MEMORY_NOTE} {LOST_NOTE}"
    return Table("Nodes", ("node", *(column.head for column in columns)), rows, note)


def spread(run: Run) -> Table:
    known = [figure for figure in SPREAD_ROWS if fig.known(run.nodes, figure.key)]
    shown = [figure for figure in known if figure not in OF_CODECS or fig.encoded(run.nodes)]
    rows = tuple((LONG_NAMES.get(figure, figure.head), *_spread(run, figure)) for figure in shown)
    return Table("Across nodes", ("", "in all", "lowest", "mean", "highest"), rows)


def beside(runs: NamedRuns) -> Table | None:
    """Rows of each run, each of its references, and the ratio of run to reference."""
    rows: list[tuple[str, ...]] = []
    for name, run in runs:
        ours, others = fig.in_all(run), fig.references(run)
        rows += [_figures_row(name, ours)] if others else []
        for other in others:
            rows += [_figures_row(other.name, other.figures), _ratio_row(ours, other)]
    heads = ("", *(column.head for column in BESIDE_COLUMNS))
    note = "Network time is that of a node; the other figures are those of all nodes together."
    return Table("Beside others", heads, tuple(rows), note) if rows else None


def comparison(runs: NamedRuns, *, links: Sequence[str] = ()) -> Table:
    """Row for each run: the settings in which it differs, and its figures."""
    keys = differing_keys([run for _, run in runs])
    inline = keys if len(keys) <= KEYS_IN_A_COMPARISON else []
    numbered = bool(inline) and all(run.label for _, run in runs)  # in a sweep the keys say all that the label says
    rows = []
    for place, (name, run) in enumerate(runs, start=1):
        figures = fig.in_all(run)
        first = str(place) if numbered else name
        rows.append((first, *_settings(run, inline), *(column.of(figures) for column in fig.IN_ALL)))
    heads = ("#" if numbered else "run", *inline, *(column.head for column in fig.IN_ALL))
    return Table("Comparison", heads, tuple(rows), MEMORY_NOTE, texts=1 + len(inline), links=tuple(links))


def differences(runs: NamedRuns) -> Table | None:
    """Settings in which runs differ, if there are too many for the comparison itself."""
    keys = differing_keys([run for _, run in runs])
    rows = tuple((name, *_settings(run, keys)) for name, run in runs)
    many = len(keys) > KEYS_IN_A_COMPARISON
    return Table("What differs", ("run", *keys), rows, texts=1 + len(keys)) if many else None


def plan(run: Run) -> Table:
    rows = tuple((_spaced(key), _planned(key, value)) for key, value in run.plan.items())
    return Table("Plan", ("", "value"), rows)


def configuration(run: Run) -> Table:
    settings = flat({key: value for key, value in run.config.items() if key != "sweep"})
    rows = tuple((key, setting(key, value)) for key, value in settings.items() if key not in SHOWN_ELSEWHERE)
    return Table("Configuration", ("key", "value"), rows, texts=2)


def environment(run: Run) -> Table:
    machine = [(_spaced(key), _fact(key, value)) for key, value in run.machine.items()]
    versions = [(key, _fact(key, value)) for key, value in run.versions.items()]
    return Table("Machine and versions", ("", ""), (*machine, *versions), texts=2)


def differing_keys(runs: Sequence[Run]) -> list[str]:
    settings = [flat(run.config) for run in runs]
    keys = dict.fromkeys(key for each in settings for key in each if key.partition(".")[0] not in NOT_COMPARED)
    return [key for key in keys if any(each.get(key) != settings[0].get(key) for each in settings)]


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    return dict(_flat(config, ""))


def _flat(config: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def setting(key: str, value: object) -> str:
    """Setting as written in the file, sizes with their unit."""
    if value is None or value == "":
        return units.MISSING
    if isinstance(value, int) and not isinstance(value, bool) and key.endswith("bytes"):
        return units.exact_size(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _settings(run: Run, keys: Sequence[str]) -> Iterator[str]:
    settings = flat(run.config)
    return (setting(key, settings.get(key)) for key in keys)


def _rank(node: NodeResult) -> str:
    return f"{node.rank}" if node.ended else f"{node.rank} *"


def _spread(run: Run, figure: Figure) -> tuple[str, ...]:
    told = fig.known(run.nodes, figure.key)
    values = [value for value in told if not math.isnan(value)] or told  # a node without samples has a loss of NaN
    total = run.totals.get(figure.key) if figure.adds_up else None
    return tuple(figure.form(value) for value in (total, min(values), fig.mean(values), max(values)))


def _figures_row(name: str, figures: Figures) -> tuple[str, ...]:
    return (name, *(column.of(figures) for column in BESIDE_COLUMNS))


def _ratio_row(ours: Figures, other: Reference) -> tuple[str, ...]:
    pairs = [(ours.get(column.key), other.figures.get(column.key)) for column in BESIDE_COLUMNS]
    return ("ratio", *(units.ratio(mine / theirs if mine is not None and theirs else None) for mine, theirs in pairs))


def _spaced(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ")


def _planned(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return units.MISSING
    return (
        units.size(value)
        if key.endswith("bytes")
        else units.duration(value)
        if key == "seconds"
        else units.count(value)
    )


def _fact(key: str, value: object) -> str:
    if isinstance(value, int | float) and key.endswith("bytes"):
        return units.size(value)
    return units.MISSING if value is None else str(value)
