"""The pictures of several runs beside each other."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringwide.experiment.report import figures as fig
from ringwide.experiment.report.bars import Bar, bars
from ringwide.experiment.report.drawing import Plot, Swatch, drawn, series, step_axis
from ringwide.experiment.report.figures import Figure
from ringwide.experiment.report.metrics import read_metrics
from ringwide.experiment.report.plots import loss_scale
from ringwide.experiment.report.reading import NamedRuns, Run
from ringwide.experiment.report.thinning import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CURVES = 14
Curves = Sequence[tuple[str, Sequence[Point]]]


def of_comparison(runs: NamedRuns) -> list[Plot]:
    plots = (
        figure_bars("Batches per second", fig.PACE, runs),
        figure_bars("Throughput", fig.THROUGHPUT, runs),
        *loss_curves(runs),
    )
    return [plot for plot in plots if plot is not None]


def figure_bars(title: str, figure: Figure, runs: NamedRuns) -> Plot | None:
    ours = [Bar(name, run.totals.get(figure.key)) for name, run in runs]
    references = dict.fromkeys(
        (found.name, found.figures.get(figure.key)) for _, run in runs for found in fig.references(run)
    )
    return bars(title, [*ours, *(Bar(name, value, ours=False) for name, value in references)], figure.form)


def loss_curves(runs: NamedRuns) -> list[Plot]:
    """The same curves twice: what a step is worth, and what a second is worth."""
    # Files of steps are long, so only those are read whose curves are drawn.
    read = [(name, _finite_points(run)) for name, run in _lowest(runs)]
    curves = [(name, points) for name, points in read if points]
    if not curves:
        return []
    legend = tuple(Swatch(name, *series(number)) for number, (name, _) in enumerate(curves))
    caption = f"The {MAX_CURVES} of {len(runs)} with the lowest loss." if len(runs) > MAX_CURVES else ""
    return [
        Plot("Loss by step", drawn(lambda axes: _by_step(axes, curves)), legend, caption),
        Plot("Loss by time", drawn(lambda axes: _by_time(axes, curves)), legend, caption),
    ]


def _by_step(axes: "Axes", curves: Curves) -> None:
    _draw_curves(axes, [[(point.step, point.mean) for point in points] for _, points in curves])
    axes.set_yscale(_scale(curves))
    step_axis(axes)


def _by_time(axes: "Axes", curves: Curves) -> None:
    _draw_curves(axes, [[(point.seconds, point.mean) for point in points] for _, points in curves])
    axes.set(xlabel="seconds of training", yscale=_scale(curves))


def _draw_curves(axes: "Axes", curves: Sequence[Sequence[tuple[float, float]]]) -> None:
    for number, points in enumerate(curves):
        color, dash = series(number)
        axes.plot([x for x, _ in points], [y for _, y in points], color=color, linestyle=dash)
    axes.set_ylabel("loss")


def _scale(curves: Curves) -> str:
    return loss_scale([point for _, points in curves for point in points])


def _lowest(runs: NamedRuns) -> NamedRuns:
    if len(runs) <= MAX_CURVES:
        return runs
    lowest = sorted(runs, key=lambda named: _order(named[1].totals.get(fig.LOSS.key)))[:MAX_CURVES]
    return [named for named in runs if named in lowest]


def _order(loss: float | None) -> float:
    return loss if loss is not None and not math.isnan(loss) else math.inf


def _finite_points(run: Run) -> Sequence[Point]:
    return [point for point in read_metrics(run.directory).points if math.isfinite(point.mean)]
