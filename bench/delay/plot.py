"""The picture of the delay benchmark: how fast numbers are averaged, over the number of lanes."""

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bench.delay.report import GLOO, Cell

COLOURS = ("#7f7f7f", "#0072b2", "#d55e00", "#009e73", "#cc79a7")
MARKERS = ("s", "o", "^", "D", "v")


def plot(report: dict[str, Any], path: Path) -> None:
    """One line for each link, and a thin one for what distance and windows alone allow."""
    cells = report["cells"]
    links = list(dict.fromkeys((cell["round_trip_ms"], cell["window_bytes"]) for cell in cells))
    windows = {window for _, window in links}
    # A hash salt makes the file the same for the same figures.
    with rc_context({"svg.hashsalt": "delay", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=(8, 4.6), layout="constrained")
        axes = figure.add_subplot(xscale="log", yscale="log")
        for number, link in enumerate(links):
            over = [cell for cell in cells if (cell["round_trip_ms"], cell["window_bytes"]) == link]
            along = [cell for cell in over if cell["contestant"] != GLOO]
            name, style = _name(along[0], len(windows)), number % len(COLOURS)
            _draw(axes, along, report["bytes"], name, COLOURS[style], MARKERS[style])
            _draw_gloo(axes, [cell for cell in over if cell["contestant"] == GLOO], COLOURS[style])
        _dress(axes, report)
        figure.savefig(path, metadata={"Date": None})


def _draw(axes: Any, cells: list[Cell], nbytes: int, name: str, colour: str, marker: str) -> None:
    lanes = [cell["lanes"] for cell in cells]
    rates = [cell["bytes_per_second"] / 1e6 for cell in cells]
    slow, fast = ([nbytes / cell["seconds_quartiles"][end] / 1e6 for cell in cells] for end in (1, 0))
    spread = [
        [max(0.0, rate - low) for rate, low in zip(rates, slow, strict=True)],
        [max(0.0, high - rate) for rate, high in zip(rates, fast, strict=True)],
    ]
    axes.errorbar(lanes, rates, yerr=spread, color=colour, marker=marker, markersize=5, linewidth=1.8, capsize=2)
    end = lanes[-1], rates[-1]
    axes.annotate(name, end, xytext=(8, 0), textcoords="offset points", color=colour, va="center")
    if cells[0]["least_seconds"]:
        axes.plot(
            lanes,
            [nbytes / cell["least_seconds"] / 1e6 for cell in cells],
            color=colour,
            linestyle=(0, (1, 2)),
            linewidth=1,
        )


def _draw_gloo(axes: Any, cells: list[Cell], colour: str) -> None:
    """It has one connection, whatever we have."""
    for cell in cells:
        rate = cell["bytes_per_second"] / 1e6
        axes.plot(1, rate, color=colour, marker="x", markersize=8, markeredgewidth=2)
        left = {"xytext": (-9, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
        axes.annotate(GLOO, (1, rate), color=colour, **left)


def _name(cell: Cell, windows: int) -> str:
    if not cell["round_trip_ms"]:
        return "no delay"
    window = f", {cell['window_bytes'] / 2**20:g} MiB" if windows > 1 else ""
    return f"{cell['round_trip_ms']} ms{window}"


def _dress(axes: Any, report: dict[str, Any]) -> None:
    windows = sorted({cell["window_bytes"] for cell in report["cells"]})
    lanes = sorted({cell["lanes"] for cell in report["cells"]})
    axes.set_xticks(lanes, [str(count) for count in lanes])
    axes.set_xlim(lanes[0] / 1.35, lanes[-1] * (1.9 if len(windows) > 1 else 1.5))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("lanes: connections to each neighbour")
    axes.set_ylabel("float32 averaged, MB/s")
    axes.set_title(
        f"All-reduce of {report['bytes'] / 2**20:g} MiB between {report['ranks']} ranks far apart, connections with "
        f"{' or '.join(f'{window / 2**20:g}' for window in windows)} MiB in flight\n"
        "median and quartiles; dotted: what distance and windows alone would allow",
        fontsize=10,
        loc="left",
    )
