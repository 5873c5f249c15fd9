"""The picture of the codec benchmark: how fast numbers are averaged, over the rate of the links."""

import math
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bench.codecs_report import Cell, rate_name

STYLES = {
    "gloo": ("#7f7f7f", "--", "s"),
    "none": ("#000000", "-", "o"),
    "lz4": ("#8c6d31", "-", "v"),
    "bf16": ("#1f77b4", "-", "^"),
    "fp16": ("#6baed6", "-", "D"),
    "int8": ("#d62728", "-", "o"),
    "topk": ("#9467bd", "-", "P"),
    "auto": ("#2ca02c", ":", "x"),
    "auto, lossy": ("#ff7f0e", ":", "x"),
}
LOOPBACK_FACTOR = 10  # loopback has no rate: it stands to the right of the fastest link
DODGE = 1.02  # so that lines which fall together are seen as several
LABELS_APART = 0.055  # of the height


def plot(report: dict[str, Any], path: Path) -> None:
    cells = [cell for cell in report["cells"] if cell["data"] == "gaussian"]
    rates = sorted({cell["rate"] for cell in cells if cell["rate"]})
    loopback = LOOPBACK_FACTOR * (rates[-1] if rates else 1e9)
    places = {rate: rate for rate in rates} | ({None: loopback} if any(not cell["rate"] for cell in cells) else {})
    # A hash salt makes the file the same for the same figures.
    with rc_context({"svg.hashsalt": "codecs", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.add_subplot(xscale="log", yscale="log")
        ends = {}
        for number, name in enumerate(STYLES):
            dodge = DODGE ** (number - len(STYLES) // 2)
            points = [(places[cell["rate"]] * dodge, cell) for cell in cells if cell["variant"] == name]
            if points:
                points.sort(key=lambda point: point[0])
                _draw(axes, points, *STYLES[name])
                ends[name] = points[-1][0], points[-1][1]["bytes_per_second"] / 1e6
        _dress(axes, report, places)
        _label(axes, ends, max(places.values()))
        figure.savefig(path, metadata={"Date": None})


def _draw(axes: Any, points: list[tuple[float, Cell]], colour: str, line: str, marker: str) -> None:
    x = [place for place, _ in points]
    y = [cell["bytes_per_second"] / 1e6 for _, cell in points]
    low = [cell["bytes_per_second"] * (1 - cell["seconds"] / cell["seconds_quartiles"][1]) / 1e6 for _, cell in points]
    high = [cell["bytes_per_second"] * (cell["seconds"] / cell["seconds_quartiles"][0] - 1) / 1e6 for _, cell in points]
    axes.errorbar(
        x, y, yerr=[low, high], color=colour, linestyle=line, marker=marker, markersize=5, linewidth=1.6, capsize=2
    )


def _label(axes: Any, ends: dict[str, tuple[float, float]], x: float) -> None:
    """Names at the ends of the lines instead of a legend, moved apart where lines end together."""
    bottom, top = map(math.log, axes.get_ylim())
    names = sorted(ends, key=lambda name: ends[name][1])
    heights = [(math.log(ends[name][1]) - bottom) / (top - bottom) for name in names]
    for name, height in zip(names, moved_apart(heights, LABELS_APART), strict=True):
        colour = STYLES[name][0]
        axes.annotate(
            name,
            ends[name],
            xytext=(x * 1.6, math.exp(bottom + height * (top - bottom))),
            color=colour,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 4},
        )


def moved_apart(heights: list[float], apart: float) -> list[float]:
    """Rising heights, changed as little as makes each so far from the next."""
    moved = list(heights)
    for _ in range(100):
        for index in range(len(moved) - 1):
            missing = apart - (moved[index + 1] - moved[index])
            if missing > 0:
                moved[index] -= missing / 2
                moved[index + 1] += missing / 2
    return moved


def _dress(axes: Any, report: dict[str, Any], places: dict[float | None, float]) -> None:
    axes.set_xticks(list(places.values()), [rate_name(rate) for rate in places])
    axes.set_xlim(min(places.values()) / 1.5, max(places.values()) * 5)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top * 1.5)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    _draw_limits(axes, report["hosts"], [rate for rate in places if rate])
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("rate of each host's link")
    axes.set_ylabel("float32 averaged, MB/s")
    axes.set_title(
        f"All-reduce of {report['bytes'] / 1e6:g} MB of gaussian float32 between {report['hosts']} hosts\n"
        "median and quartiles; all hosts share one machine's cores",
        fontsize=10,
        loc="left",
    )


def _draw_limits(axes: Any, hosts: int, rates: list[float]) -> None:
    """What links of these rates can carry of raw numbers, if nothing else takes time."""
    for rate in rates:
        limit = rate / 8 / (2 * (hosts - 1) / hosts) / 1e6
        axes.hlines(limit, rate / 1.35, rate * 1.35, color="#999999", linewidth=1)
        if rate == min(rates):
            axes.annotate("the link, raw", (rate * 1.38, limit), color="#777777", fontsize=8, va="center")
