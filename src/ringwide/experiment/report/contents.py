"""Contents of a report: title, headline figures, tables and remarks, independent of their format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ringwide.experiment.report import quantities as fig
from ringwide.experiment.report import tables, units
from ringwide.experiment.report.metrics import Metrics
from ringwide.experiment.report.quantities import Figure
from ringwide.experiment.report.run_files import Figures, NamedRuns, Run, Sweep
from ringwide.experiment.report.tables import Table, as_markdown, markdown


@dataclass(frozen=True, slots=True)
class Tile:
    """Headline figure."""

    name: str
    value: str
    detail: str = ""


def tiles_of_run(run: Run, metrics: Metrics) -> tuple[Tile, ...]:
    figures = fig.in_all(run)
    last = metrics.points[-1].mean if metrics.points else None
    loss = figures.get(fig.LOSS.key)
    torch, each = figures.get(fig.TORCH_MEMORY.key), fig.mean_of(run.nodes, fig.MEMORY)
    return (
        Tile("Batches", fig.BATCHES.of(figures), f"in {fig.SECONDS.of(figures)} of training"),
        Tile("Batches/s", fig.PACE.of(figures), "all nodes together"),
        Tile(
            "Loss",
            units.loss(last if loss is None else loss),
            _told(fig.TEST_LOSS, figures, before="held-out samples "),
        ),
        Tile("Test accuracy", fig.ACCURACY.of(figures), _told(fig.EPOCHS, figures, before="after ", after=" epochs")),
        Tile("Throughput", fig.THROUGHPUT.of(figures), _compression(run, figures)),
        Tile(
            "Network time",
            fig.NETWORK.of(figures),
            "of a node" + _told(fig.HIDDEN, figures, before=", ", after=" hidden"),
        ),
        Tile("Memory", fig.MEMORY.of(figures), _memory(each, torch)),
    )


def _memory(each: float | None, torch: float | None) -> str:
    libraries = f"; torch's libraries {units.size(torch)}" if torch else ""
    return f"{units.size(each)} a node{libraries}" if each else ""


def _compression(run: Run, figures: Figures) -> str:
    sent = _told(fig.SENT, figures, after=" sent")
    return f"{sent}, compressed {fig.RATIO.of(figures)}" if fig.encoded(run.nodes) else sent


def _told(figure: Figure, figures: Figures, *, before: str = "", after: str = "") -> str:
    return before + figure.of(figures) + after if figures.get(figure.key) is not None else ""


def tiles_of_comparison(runs: NamedRuns) -> tuple[Tile, ...]:
    best = (
        ("Most batches per second", fig.PACE, max),
        ("Lowest loss", fig.LOSS, min),
        ("Best test accuracy", fig.ACCURACY, max),
        ("Least memory", fig.MEMORY, min),
    )
    return tuple(_best_tile(runs, title, figure, choose) for title, figure, choose in best)


def _best_tile(runs: NamedRuns, title: str, figure: Figure, choose: Callable[[Sequence[float]], float]) -> Tile:
    values = {name: value for name, run in runs if _is_number(value := fig.in_all(run).get(figure.key))}
    if not values:
        return Tile(title, units.MISSING)
    best = choose([value for value in values.values() if value is not None])
    names = [name for name, value in values.items() if value == best]
    return Tile(title, figure.form(best), names[0] if len(names) == 1 else f"{len(names)} runs alike")


def _is_number(value: float | None) -> bool:
    return value is not None and value == value  # false for NaN


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything a report says, apart from its plots."""

    title: str
    status: str
    facts: tuple[str, ...]  # one line below the title
    banner: str
    notes: tuple[str, ...]
    remarks: tuple[str, ...]
    tiles: tuple[Tile, ...]
    tables: tuple[Table, ...]
    folded: tuple[Table, ...]  # tables shown folded


def of_run(run: Run, metrics: Metrics) -> Contents:
    shown = (tables.beside([("this run", run)]), tables.nodes(run), tables.spread(run))
    return Contents(
        title=f"{run.name}: {run.label}" if run.label else run.name,
        status=run.status,
        facts=_facts(run),
        banner=_banner(run),
        notes=_paragraphs(run.setting("report.notes")),
        remarks=_remarks(metrics),
        tiles=tiles_of_run(run, metrics),
        tables=_filled(shown),
        folded=_filled((tables.plan(run), tables.configuration(run), tables.environment(run))),
    )


def of_comparison(runs: NamedRuns, *, links: Sequence[str], sweep: Sweep | None = None) -> Contents:
    first = runs[0][1] if runs else None
    shown = (tables.comparison(runs, links=links) if runs else None, tables.differences(runs), tables.beside(runs))
    return Contents(
        title=sweep.name if sweep else f"Comparison of {len(runs)} runs",
        status=sweep.status if sweep else "",
        facts=_sweep_facts(sweep) if sweep else (),
        banner=_banner(sweep) if sweep else _unfinished(runs),
        notes=_paragraphs(first.setting("report.notes")) if first and sweep else (),
        remarks=(),
        tiles=tiles_of_comparison(runs),
        tables=_filled(shown),
        folded=_filled((tables.environment(first),)) if first else (),
    )


def as_text(contents: Contents) -> str:
    """Whole report as Markdown, without the plots."""
    parts = [f"# {as_markdown(contents.title)}\n"]
    parts += [f"{as_markdown(' · '.join(contents.facts))}\n"] if contents.facts else []
    parts += [f"**{as_markdown(contents.banner)}**\n"] if contents.banner else []
    parts += [f"{as_markdown(paragraph)}\n" for paragraph in (*contents.notes, *contents.remarks)]
    headline = Table("In short", ("", "", ""), tuple((t.name, t.value, t.detail) for t in contents.tiles), texts=1)
    return "\n".join([*parts, *map(markdown, (headline, *contents.tables, *contents.folded))])


def named(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """Runs with unique names, as short as possible."""
    choices: tuple[Callable[[Run], str], ...] = (
        lambda run: run.label or run.name,
        lambda run: f"{run.name}: {run.label}" if run.label else run.name,
        lambda run: f"{run.directory.parent.name}: {run.label}" if run.label else run.directory.name,
        lambda run: str(run.directory),
    )
    fitting = (
        names for choice in choices if len(set(names := [choice(run) for run in runs])) == len(runs) and all(names)
    )
    return list(zip(next(fitting, [f"run {number}" for number in range(1, len(runs) + 1)]), runs, strict=True))


def links_to(runs: Sequence[Run], directory: Path) -> list[str]:
    """Links from a page in `directory` to the reports of runs below it; empty for runs elsewhere."""
    pages = [run.directory.resolve() / "report.html" for run in runs]
    around = directory.resolve()
    return [
        quote(str(page.relative_to(around))) if page.is_relative_to(around) and page.exists() else "" for page in pages
    ]


def _facts(run: Run) -> tuple[str, ...]:
    model, data = run.setting("training.model"), run.setting("training.data")
    codec = run.setting("ring.codec")
    cores = run.machine.get("cores")
    return tuple(
        fact
        for fact in (
            f"{run.size} nodes" if run.size != 1 else "1 node",
            f"{model} on {data}" if model and data else "",
            f"codec {codec}" if codec not in (None, "none") else "",
            f"started {_moment(run.started)}" if run.started else "",
            f"{units.duration(run.seconds)} in all" if run.seconds else "",
            f"{cores} cores" if cores else "",
        )
        if fact
    )


def _sweep_facts(sweep: Sweep) -> tuple[str, ...]:
    of_runs = [_facts(run)[:2] for run in sweep.runs] or [()]
    alike = [fact for fact in of_runs[0] if all(fact in facts for facts in of_runs)]
    return (
        *alike,
        f"{len(sweep.runs)} of {sweep.planned} variants"
        if len(sweep.runs) < sweep.planned
        else f"{sweep.planned} variants",
        f"over {', '.join(sweep.keys)}",
        f"started {_moment(sweep.started)}",
        f"{units.duration(sweep.seconds)} in all",
    )


def _moment(started: str) -> str:
    return started[:16].replace("T", " ")


def _banner(run: Run | Sweep) -> str:
    match run.status:
        case "complete":
            return ""
        case "stopped":
            return f"Stopped early{f' by {run.reason}' if run.reason else ''}: the figures are those of a part."
        case "failed":
            return f"Failed{f': {run.reason}' if run.reason else ''}. The figures are those of what was done before."
    return f"Status {run.status or 'unknown'}: these figures may not be complete."


def _unfinished(runs: NamedRuns) -> str:
    unfinished = [f"{name} ({run.status or 'unknown'})" for name, run in runs if run.status != "complete"]
    return f"Not complete: {', '.join(unfinished)}." if unfinished else ""


def _paragraphs(notes: object) -> tuple[str, ...]:
    return tuple(part.strip() for part in notes.split("\n\n") if part.strip()) if isinstance(notes, str) else ()


def _remarks(metrics: Metrics) -> tuple[str, ...]:
    bad, lines = metrics.first_step_not_finite, metrics.unreadable_lines
    return (
        *([f"From step {bad:,} on some losses are not finite; the curve shows only those that are."] if bad else []),
        *(["One line of metrics.jsonl could not be read and was left out."] if lines == 1 else []),
        *([f"{lines:,} lines of metrics.jsonl could not be read and were left out."] if lines > 1 else []),
    )


def _filled(found: Sequence[Table | None]) -> tuple[Table, ...]:
    return tuple(table for table in found if table is not None and table.rows)
