"""Plots of one run, and of several runs in comparison."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ringwide.experiment.report import quantities as fig
from ringwide.experiment.report import units
from ringwide.experiment.report.drawing import (
    CARD,
    SERIES,
    Bar,
    Plot,
    Swatch,
    bars,
    drawn,
    series,
    step_axis,
    whole_numbers,
)
from ringwide.experiment.report.metrics import Evaluated, Metrics, Point, read_metrics
from ringwide.experiment.report.quantities import Figure
from ringwide.experiment.report.run_files import NamedRuns, NodeResult, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes


BLUE, ORANGE, GREEN, PURPLE, SKY = SERIES[:5]
MAX_MARKS = 40  # more would cover the curve
LOG_FROM_RATIO = 100  # a loss that falls this far is a flat line on a plain axis


def of_run(run: Run, metrics: Metrics) -> list[Plot]:
    plots = (
        loss(metrics),
        accuracy(metrics),
        pace(run, metrics),
        time_split(run),
        learning_rate(metrics),
        gradient_norm(metrics),
        beside(run),
    )
    return [plot for plot in plots if plot is not None]


def loss(metrics: Metrics) -> Plot | None:
    points = [point for point in metrics.points if math.isfinite(point.mean)]
    held_out = [found for found in thinned(metrics.evaluations) if found.loss is not None and math.isfinite(found.loss)]
    if not points:
        return None

    def draw(axes: "Axes") -> None:
        steps = [point.step for point in points]
        axes.fill_between(steps, [p.low for p in points], [p.high for p in points], color=BLUE, alpha=0.22, linewidth=0)
        axes.plot(steps, [point.mean for point in points], color=BLUE)
        axes.plot([e.step for e in held_out], [e.loss or 0 for e in held_out], "o", color=ORANGE, markersize=4)
        axes.set(ylabel="loss", yscale=loss_scale(points))
        if axes.get_yscale() == "log":  # a band from a few easy samples could reach far down
            axes.set_ylim(bottom=min(point.mean for point in points) / 2)
        step_axis(axes)

    legend = [Swatch("mean over nodes", BLUE)]
    legend += [Swatch("lowest to highest node", BLUE, "band")] if len(metrics.heard) > 1 else []
    legend += [Swatch("held-out samples", ORANGE, "point")] if held_out else []
    return Plot("Loss", drawn(draw), tuple(legend))


def accuracy(metrics: Metrics) -> Plot | None:
    told = [found for found in thinned(metrics.evaluations) if found.accuracy is not None]
    if len(told) < 2:
        return None

    def draw(axes: "Axes") -> None:
        axes.plot([e.step for e in told], [100 * (e.accuracy or 0) for e in told], "o-", color=ORANGE, markersize=4)
        axes.set_ylabel("% right")
        step_axis(axes)

    return Plot("Accuracy on held-out samples", drawn(draw))


def pace(run: Run, metrics: Metrics) -> Plot | None:
    pieces = metrics.pace
    if len(pieces) < 2:
        return None
    rates = [piece.steps_per_second * _batches_per_step(run) for piece in pieces]
    bytes_per_batch = _bytes_per_batch(run)

    def draw(axes: "Axes") -> None:
        times = [(piece.start + piece.end) / 2 for piece in pieces]
        axes.plot(times, rates, color=BLUE)
        axes.set(xlabel="seconds of training", ylabel="batches/s, all nodes")
        axes.set(xlim=(0, pieces[-1].end), ylim=(0, 1.1 * max(rates) or 1))
        if bytes_per_batch:
            right = axes.secondary_yaxis("right", functions=_scaling(bytes_per_batch / 1e6))
            right.set_ylabel("MB/s sent")

    caption = f"MB/s at the mean of {units.size(bytes_per_batch)} sent for each batch." if bytes_per_batch else ""
    return Plot("Pace over time", drawn(draw), caption=caption)


def _batches_per_step(run: Run) -> float:
    steps, batches = sum(fig.known(run.nodes, "steps")), sum(fig.known(run.nodes, fig.BATCHES.key))
    return batches / steps if steps else 1.0


def _scaling(scale: float) -> tuple[Any, Any]:
    return lambda value: value * scale, lambda value: value / scale


def _bytes_per_batch(run: Run) -> float | None:
    batches, sent = run.totals.get(fig.BATCHES.key), run.totals.get(fig.SENT.key)
    return sent / batches if batches and sent and not run.missing else None


def time_split(run: Run) -> Plot | None:
    """Stacked bars of each node's time. Hidden network time overlaps computing, so it is between the other two."""
    nodes = [node for node in run.nodes if node.figures.get(fig.SECONDS.key)]
    if not nodes:
        return None
    ranks, shares = [node.rank for node in nodes], [_shares(node) for node in nodes]
    codec = [100 * (node.figures.get("codec_share") or 0) for node in nodes]
    parts = [
        Swatch("computing", BLUE),
        Swatch("network, hidden by computing", SKY),
        Swatch("network, waited for", ORANGE),
    ]

    def draw(axes: "Axes") -> None:
        floor = [0.0] * len(nodes)
        for index, part in enumerate(parts):
            heights = [share[index] for share in shares]
            axes.bar(ranks, heights, bottom=floor, color=part.color, width=0.72)
            floor = [below + height for below, height in zip(floor, heights, strict=True)]
        if any(codec):
            axes.plot(ranks, codec, "D", color=PURPLE, markeredgecolor=CARD, markersize=7)
        whole_numbers(axes, most=16)
        axes.grid(visible=False, axis="x")
        axes.set(xlabel="node", ylabel="% of training time", ylim=(0, 100))

    marks = [Swatch("in codecs (part of the others)", PURPLE, "point")] if any(codec) else []
    legend = [Swatch(part.name, part.color, "area") for part in parts]
    return Plot("Where the time went", drawn(draw), (*legend, *marks))


def _shares(node: NodeResult) -> tuple[float, float, float]:
    seconds = node.figures.get(fig.SECONDS.key) or 1.0
    network = min(node.figures.get(fig.NETWORK.key) or 0.0, seconds)
    hidden = min(node.figures.get("hidden_seconds") or 0.0, network)
    return 100 * (seconds - network) / seconds, 100 * hidden / seconds, 100 * (network - hidden) / seconds


def learning_rate(metrics: Metrics) -> Plot | None:
    rates = [point.learning_rate for point in metrics.points]
    if not rates or max(rates) - min(rates) <= 1e-9 * max(rates):
        return None

    def draw(axes: "Axes") -> None:
        axes.plot([point.step for point in metrics.points], rates, color=GREEN)
        axes.set(ylabel="learning rate", ylim=(0, 1.1 * max(rates)))
        step_axis(axes)

    return Plot("Learning rate", drawn(draw))


def gradient_norm(metrics: Metrics) -> Plot | None:
    norms = [(point.step, point.gradient_norm) for point in metrics.points if point.gradient_norm is not None]
    if not norms:
        return None

    def draw(axes: "Axes") -> None:
        axes.plot([step for step, _ in norms], [norm for _, norm in norms], color=PURPLE)
        axes.set(ylabel="norm")
        axes.set_ylim(bottom=0)
        step_axis(axes)

    return Plot("Gradient norm, before clipping", drawn(draw))


def beside(run: Run) -> Plot | None:
    others = [Bar(found.name, found.figures.get(fig.PACE.key), ours=False) for found in fig.references(run)]
    ours = Bar("this run", run.totals.get(fig.PACE.key))
    return bars("Batches per second, beside others", [ours, *others], units.number) if others else None


def loss_scale(points: Sequence[Point]) -> str:
    means = [point.mean for point in points]
    positive = min(point.low for point in points) > 0
    return "log" if positive and max(means) / min(means) > LOG_FROM_RATIO else "linear"


def thinned(evaluations: Sequence[Evaluated]) -> Sequence[Evaluated]:
    """At most `MAX_MARKS` evenly spaced evaluations, always with the last."""
    stride = -(-len(evaluations) // MAX_MARKS) or 1
    return evaluations[::-1][::stride][::-1]


# -- comparison of several runs

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
    """Loss curves, once by step and once by time."""
    # Metrics files are long, so only those with a curve to draw are read.
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
