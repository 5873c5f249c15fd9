"""The figures a reader wants first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ringwide.experiment.report import figures as fig
from ringwide.experiment.report import units
from ringwide.experiment.report.figures import Figure
from ringwide.experiment.report.metrics import Metrics
from ringwide.experiment.report.reading import Figures, NamedRuns, Run


@dataclass(frozen=True, slots=True)
class Tile:
    """One headline figure."""

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
    alone = f"; torch alone {units.size(torch)}" if torch else ""
    return f"{units.size(each)} a node{alone}" if each else ""


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
    return value is not None and value == value  # which NaN is not
