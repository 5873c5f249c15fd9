"""The pictures of a speed report: one for each question, a panel for each number of ranks."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from bench.codecs_plot import moved_apart
from bench.speed.contestants import GLOO, HIVEMIND, MPICH, OPENMPI_SHM, OPENMPI_TCP, OURS, RINGWIDE, RINGWIDE_TCP
from bench.units import size_name

Cell = dict[str, Any]
Point = tuple[float, float, float, float]  # bytes; median, lower and upper quartile
LIMIT = "the limit"

# Colours that the colour-blind tell apart (Okabe and Ito); ours are the thick ones.
STYLES = {
    GLOO: ("gloo", "#777777", "-", "s", 1.4),
    HIVEMIND: ("hivemind", "#009E73", ":", "v", 1.4),
    OPENMPI_TCP: ("Open MPI, TCP", "#E69F00", "--", "D", 1.4),
    OPENMPI_SHM: ("Open MPI, shm", "#D55E00", "-", "D", 1.4),
    MPICH: ("MPICH, shm", "#CC79A7", "-", "^", 1.4),
    RINGWIDE_TCP: ("ringwide, TCP", "#56B4E9", "--", "o", 2.6),
    RINGWIDE: ("ringwide, same host", "#0072B2", "-", "o", 2.6),
    LIMIT: ("raw TCP limit", "#000000", ":", "", 1.2),
}
LABELS_APART = 0.062  # of the height
LARGEST_LATENCY, SMALLEST_BANDWIDTH = 2**20, 2**20  # where it is steps, and where it is bytes, that take time


@dataclass(frozen=True, slots=True)
class Picture:
    """One question: which figure of a cell, on which axis."""

    name: str
    title: str
    axis: str
    figure: Callable[[Cell], tuple[float, float, float] | None]
    log: bool = True
    least_bytes: int = 0
    most_bytes: int = 2**62
    contestants: Sequence[str] = tuple(STYLES)
    line_at: float | None = None


def _latency(cell: Cell) -> tuple[float, float, float]:
    low, high = cell["seconds_quartiles"]
    return cell["seconds"] * 1e6, low * 1e6, high * 1e6


def _bandwidth(cell: Cell) -> tuple[float, float, float]:
    """What a ring moves, all ranks together: so a machine that all ranks share has the same rate for any number."""
    low, high = cell["seconds_quartiles"]
    moved = 2 * (cell["ranks"] - 1) * cell["bytes"] / 1e9
    return moved / cell["seconds"], moved / high, moved / low


def _over_gloo(cell: Cell) -> tuple[float, float, float] | None:
    found = cell["over"].get(GLOO)
    return (found[1], found[0], found[2]) if found else None


def _fraction(cell: Cell) -> tuple[float, float, float] | None:
    found = cell.get("fraction")
    return (found[1], found[0], found[2]) if found else None


PICTURES = (
    Picture(
        "latency",
        "Time of one all-reduce of what is small, lower is better",
        "microseconds",
        _latency,
        most_bytes=LARGEST_LATENCY,
    ),
    Picture(
        "bandwidth",
        "Rate of an all-reduce of what is large, higher is better: 2 (ranks - 1) times its bytes, over its time",
        "GB/s, all ranks together",
        _bandwidth,
        log=False,
        least_bytes=SMALLEST_BANDWIDTH,
    ),
    Picture("ratio", "How many times as fast as gloo, higher is better", "gloo's time / time", _over_gloo, line_at=1),
    Picture(
        "fraction",
        "The time that the limit allows over the time it took, higher is better. Small: round trips.\n"
        "Large, where the line begins anew: raw TCP both ways, or, on the same host, copying and adding in memory",
        "fraction of the limit",
        _fraction,
        log=False,
        contestants=OURS,
        line_at=1,
    ),
)


def plot(report: dict[str, Any], directory: Path) -> list[Path]:
    """Every picture of which there is something to show."""
    paths = []
    for picture in PICTURES:
        lines = {ranks: lines_of(picture, report["cells"], ranks) for ranks in report["ranks"]}
        if any(lines.values()):
            paths.append(directory / f"speed-{picture.name}.svg")
            draw(picture, {ranks: found for ranks, found in lines.items() if found}, paths[-1])
    return paths


def lines_of(picture: Picture, cells: Sequence[Cell], ranks: int) -> dict[str, list[Point]]:
    """Points by contestant, from small to large."""
    lines: dict[str, list[Point]] = {}
    limits: dict[str, str] = {}
    sizes = range(picture.least_bytes, picture.most_bytes + 1)
    chosen = [cell for cell in cells if cell["ranks"] == ranks and cell["bytes"] in sizes]
    for name, cell in _with_the_limit(sorted(chosen, key=lambda cell: cell["bytes"])):
        figure = picture.figure(cell) if name in picture.contestants else None
        if figure is None:
            continue
        points = lines.setdefault(name, [])
        if "limit" in cell and (name == LIMIT or picture.name == "fraction"):
            if limits.get(name, cell["limit"]) != cell["limit"]:
                points.append((cell["bytes"], *[math.nan] * 3))  # another limit, another line
            limits[name] = cell["limit"]
        points.append((cell["bytes"], *figure))
    return lines


def _with_the_limit(cells: Sequence[Cell]) -> Iterator[tuple[str, Cell]]:
    """The cells, and after those of ringwide over TCP what could have been there."""
    for cell in cells:
        yield cell["contestant"], cell
        if cell["contestant"] == RINGWIDE_TCP and "limit_seconds" in cell:
            least = cell["limit_seconds"]
            yield LIMIT, {**cell, "seconds": least, "seconds_quartiles": [least, least], "over": {}}


def draw(picture: Picture, panels: dict[int, dict[str, list[Point]]], path: Path) -> None:
    # A hash salt makes the file the same for the same figures.
    with rc_context({"svg.hashsalt": picture.name, "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(3.3 * len(panels) + 1.8, 4.4), layout="constrained")
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (ranks, lines) in zip(all_axes, panels.items(), strict=True):
            for name, points in lines.items():
                _draw_line(axes, name, points)
            _dress(axes, picture, ranks, lines)
        all_axes[0].set_ylabel(picture.axis)
        if not picture.log:
            all_axes[0].set_ylim(bottom=0)
        _label(all_axes[-1], list(panels.values())[-1])
        figure.suptitle(picture.title, fontsize=11, x=0.01, ha="left")
        figure.savefig(path, metadata={"Date": None})


def _draw_line(axes: Any, name: str, points: list[Point]) -> None:
    _, colour, style, marker, width = STYLES[name]
    x, y, low, high = zip(*points, strict=True)
    axes.plot(x, y, color=colour, linestyle=style, marker=marker, markersize=4.5, linewidth=width)
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _dress(axes: Any, picture: Picture, ranks: int, lines: dict[str, list[Point]]) -> None:
    sizes = sorted({point[0] for points in lines.values() for point in points})
    axes.set_xscale("log", base=2)
    if picture.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sizes, [size_name(int(size)) for size in sizes], rotation=90, fontsize=8)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    if picture.line_at is not None:
        axes.axhline(picture.line_at, color="#333333", linewidth=0.8)
    axes.grid(color="#e3e3e3", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{ranks} ranks", fontsize=10)


def _label(axes: Any, lines: dict[str, list[Point]]) -> None:
    """Names at the ends of the lines of the last panel instead of a legend, moved apart where lines end together."""
    ends = {name: points[-1][:2] for name, points in lines.items()}
    to_panel = axes.transData + axes.transAxes.inverted()
    heights = {name: float(to_panel.transform(end)[1]) for name, end in ends.items()}
    names = sorted(heights, key=lambda name: heights[name])
    for name, height in zip(names, inside(moved_apart([heights[name] for name in names], LABELS_APART)), strict=True):
        title, colour, *_ = STYLES[name]
        axes.annotate(
            title,
            ends[name],
            xytext=(1.06, height),
            textcoords="axes fraction",
            annotation_clip=False,
            color=colour,
            fontsize=9,
            va="center",
            fontweight="bold" if name in OURS else "normal",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 4},
        )


def inside(heights: list[float]) -> list[float]:
    """Moved as a whole, as far as it needs to be within the panel."""
    up, down = max(-heights[0], 0), max(heights[-1] - 1, 0)
    return [height + up - down for height in heights]
