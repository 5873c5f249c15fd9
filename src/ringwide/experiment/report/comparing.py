"""The pictures of several runs beside each other."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringwide.experiment.report import figures as fig
from ringwide.experiment.report.bars import Bar, bars
from ringwide.experiment.report.contents import NamedRuns
from ringwide.experiment.report.drawing import Plot, Swatch, drawn, series
from ringwide.experiment.report.figures import Figure
from ringwide.experiment.report.metrics import read_metrics
from ringwide.experiment.report.plots import loss_scale
from ringwide.experiment.report.reading import Run
from ringwide.experiment.report.thinning import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CURVES = 14


def of_comparison(runs: NamedRuns) -> list[Plot]:
    plots = (
        figure_bars("Batches per second", fig.PACE, runs),
        figure_bars("Throughput", fig.THROUGHPUT, runs),
        loss_curves(runs),
    )
    return [plot for plot in plots if plot is not None]


def figure_bars(title: str, figure: Figure, runs: NamedRuns) -> Plot | None:
    ours = [Bar(name, run.totals.get(figure.key)) for name, run in runs]
    references = dict.fromkeys(
        (found.name, found.figures.get(figure.key)) for _, run in runs for found in fig.references(run)
    )
    return bars(title, [*ours, *(Bar(name, value, ours=False) for name, value in references)], figure.form)


def loss_curves(runs: NamedRuns) -> Plot | None:
    """Files of steps are long, so only those are read whose curves are drawn."""
    chosen = [(name, _finite_points(run)) for name, run in _lowest(runs)]
    curves = [(name, points) for name, points in chosen if points]
    if not curves:
        return None

    def draw(axes: "Axes") -> None:
        for number, (_, points) in enumerate(curves):
            color, dash = series(number)
            axes.plot([p.step for p in points], [p.mean for p in points], color=color, linestyle=dash)
        axes.set(xlabel="step", ylabel="loss", yscale=loss_scale([point for _, points in curves for point in points]))

    legend = tuple(Swatch(name, *series(number)) for number, (name, _) in enumerate(curves))
    caption = f"The {MAX_CURVES} of {len(runs)} with the lowest loss." if len(runs) > MAX_CURVES else ""
    return Plot("Loss", drawn(draw), legend, caption)


def _lowest(runs: NamedRuns) -> NamedRuns:
    if len(runs) <= MAX_CURVES:
        return runs
    lowest = sorted(runs, key=lambda named: _order(named[1].totals.get(fig.LOSS.key)))[:MAX_CURVES]
    return [named for named in runs if named in lowest]


def _order(loss: float | None) -> float:
    return loss if loss is not None and not math.isnan(loss) else math.inf


def _finite_points(run: Run) -> Sequence[Point]:
    return [point for point in read_metrics(run.directory).points if math.isfinite(point.mean)]
