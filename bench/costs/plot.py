"""The picture of the cost curves: a panel for each, gloo beside ringwide."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullLocator

from bench.costs.summary import Cell
from bench.costs.tables import cells_of
from bench.units import size_name

OURS, GLOO, THIRD = "#0072b2", "#7f7f7f", "#56b4e9"
MARKERS = ("o", "^", "D", "v", "P")
MIB = 2**20
FEW_BLOCKS = 200
"""Of some 600,000 that a program with torch holds: on a finer scale, any object would look like a leak."""
Axes = Any


def plot(report: dict[str, Any], path: Path) -> None:
    # A hash salt makes the file the same for the same figures.
    with rc_context({"svg.hashsalt": "costs", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}):
        figure = Figure(figsize=(12, 7), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        panels = figure.subplots(2, 3).flat
        drawings = (
            (_times, "time"),
            (_ratios, "time"),
            (_processor, "processor"),
            (_memory, "memory"),
            (_join, "join"),
            (_allocations, "allocations"),
        )
        for axes, (draw, section) in zip(panels, drawings, strict=True):
            draw(axes, cells_of(report, section))
            axes.grid(color="#e4e4e4", linewidth=0.6)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None})


def _times(axes: Axes, cells: Sequence[Cell]) -> None:
    _title(axes, "Time of an all-reduce", "solid: ringwide, dashed: gloo; median and quartiles")
    for marker, nbytes in zip(MARKERS, _sizes(cells), strict=False):
        for library, colour, line in (("gloo", GLOO, "--"), ("ringwide", OURS, "-")):
            along = [cell for cell in cells if (cell["bytes"], cell["contestant"]) == (nbytes, library)]
            _curve(axes, along, "ranks", "seconds", 1e3, colour=colour, line=line, marker=marker)
            if library == "ringwide":
                _label(axes, along[-1]["ranks"], along[-1]["seconds"] * 1e3, size_name(nbytes), colour)
    _log_log(axes, _ranks(cells), "ranks, on the same cores", "ms")


def _ratios(axes: Axes, cells: Sequence[Cell]) -> None:
    _title(axes, "How many times as fast as gloo", "median of neighbouring turns, and quartiles")
    for marker, nbytes in zip(MARKERS, _sizes(cells), strict=False):
        along = [cell for cell in cells if (cell["bytes"], cell["contestant"]) == (nbytes, "ringwide")]
        low, middle, high = zip(*(cell["over_gloo"] for cell in along), strict=True)
        ranks = [cell["ranks"] for cell in along]
        axes.errorbar(
            ranks, middle, yerr=_around(middle, low, high), color=OURS, marker=marker, markersize=4, capsize=2
        )
        _label(axes, ranks[-1], middle[-1], size_name(nbytes), OURS)
    axes.axhline(1, color=GLOO, linewidth=1, linestyle="--")
    _log_log(axes, _ranks(cells), "ranks, on the same cores", "times")


def _processor(axes: Axes, cells: Sequence[Cell]) -> None:
    largest = max(cell["bytes"] for cell in cells)
    _title(axes, "Processor time for a gigabyte", f"of a rank's tensors of {size_name(largest)}; dark: in the kernel")
    cells = [cell for cell in cells if cell["bytes"] == largest]
    ranks = _ranks(cells)
    for cell in cells:
        ours = cell["contestant"] == "ringwide"
        place, colour = ranks.index(cell["ranks"]) + (0.2 if ours else -0.2), OURS if ours else GLOO
        user, system = cell["user_seconds"], cell["system_seconds"]
        axes.bar(place, system, 0.36, color=colour, label=cell["contestant"] if cell["ranks"] == ranks[0] else None)
        axes.bar(place, user, 0.36, bottom=system, color=colour, alpha=0.45)
        top = (place, user + system)
        above = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"{user + system:.2f}", top, color=colour, **above)
    axes.margins(y=0.25)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set_xticks(range(len(ranks)), [f"{count} ranks" for count in ranks])
    axes.set_ylabel("s")


def _memory(axes: Axes, cells: Sequence[Cell]) -> None:
    _title(axes, "Memory beyond the tensor", f"of one of {cells[0]['ranks']} ranks: the peak of what is resident")
    for library, colour, marker in (("gloo", GLOO, "s"), ("ringwide", OURS, "o")):
        along = [cell for cell in cells if cell["contestant"] == library]
        sizes, peaks = [cell["bytes"] / MIB for cell in along], [cell["peak_bytes"] / MIB for cell in along]
        axes.plot(sizes, peaks, color=colour, marker=marker, markersize=4)
        _label(axes, sizes[-1], peaks[-1], library, colour)
    axes.plot(sizes, sizes, color="#999999", linewidth=1, linestyle=":")
    middle = sizes[len(sizes) // 2]
    below = {"xytext": (6, -4), "textcoords": "offset points", "va": "top", "fontsize": 8}
    axes.annotate("as much as the tensor", (middle, middle), color="#777777", **below)
    _log_log(axes, sizes, "tensor, MiB", "MiB")


def _join(axes: Axes, cells: Sequence[Cell]) -> None:
    _title(axes, "Time until all ranks have joined", "from when all are ready; median and quartiles")
    ways = (
        ("gloo", True, "gloo", GLOO, "s"),
        ("ringwide", True, "ringwide,\nwith torch", THIRD, "^"),
        ("ringwide", False, "ringwide", OURS, "o"),
    )
    ends = []
    for library, torch, name, colour, marker in ways:
        along = [cell for cell in cells if (cell["contestant"], cell["torch"]) == (library, torch)]
        _curve(axes, along, "ranks", "seconds", 1e3, colour=colour, line="-", marker=marker)
        ends.append((along[-1]["seconds"] * 1e3, along[-1]["ranks"], name, colour))
    for place, (height, ranks, name, colour) in enumerate(sorted(ends)):
        _label(axes, ranks, height, name, colour, up=(place - 1) * 9)
    _log_log(axes, _ranks(cells), "ranks, on the same cores", "ms")


def _allocations(axes: Axes, cells: Sequence[Cell]) -> None:
    _title(axes, "What Python holds more after many calls", "of the rank that gained most; a leak would rise and rise")
    few, most = min(cell["ranks"] for cell in cells), FEW_BLOCKS
    for marker, cell in zip(MARKERS * 2, cells, strict=False):
        calls = [(1 + step) * cell["calls_a_step"] for step in range(len(cell["live_blocks"]))]
        more = [live - cell["live_blocks"][0] for live in cell["live_blocks"]]
        most = max(most, *more)
        name, colour = f"{size_name(cell['bytes'])}, {cell['ranks']} ranks", OURS if cell["ranks"] == few else THIRD
        axes.plot(calls, more, color=colour, marker=marker, markersize=4, linewidth=1, label=name)
    axes.set_xscale("log")
    axes.set_ylim(-0.2 * most, 1.6 * most)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    axes.set_xlabel("calls, after those that warm up")
    axes.set_ylabel("blocks of memory")


def _curve(
    axes: Axes, cells: Sequence[Cell], x: str, y: str, scale: float, *, colour: str, line: str, marker: str
) -> None:
    middle = [cell[y] * scale for cell in cells]
    low, high = ([cell[f"{y}_quartiles"][end] * scale for cell in cells] for end in (0, 1))
    axes.errorbar(
        [cell[x] for cell in cells],
        middle,
        yerr=_around(middle, low, high),
        color=colour,
        linestyle=line,
        marker=marker,
        markersize=4,
        linewidth=1.4,
        capsize=2,
    )


def _around(middle: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[list[float]]:
    below = [max(0.0, median - end) for median, end in zip(middle, low, strict=True)]
    above = [max(0.0, end - median) for median, end in zip(middle, high, strict=True)]
    return [below, above]


def _label(axes: Axes, x: float, y: float, text: str, colour: str, up: float = 0) -> None:
    axes.annotate(text, (x, y), xytext=(7, up), textcoords="offset points", color=colour, va="center")


def _log_log(axes: Axes, ticks: Sequence[float], x: str, y: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(ticks[0] / 1.12, ticks[-1] * (ticks[-1] / ticks[0]) ** 0.28)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if _decades(axes) < 2.5 else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _decades(axes: Axes) -> float:
    bottom, top = axes.get_ylim()
    return float(len(str(int(top / max(bottom, 1e-9)))) - 1)


def _title(axes: Axes, text: str, explained: str) -> None:
    axes.set_title(f"{text}\n", fontsize=10, loc="left", fontweight="bold")
    axes.text(0, 1.02, explained, transform=axes.transAxes, fontsize=8, color="#555555")


def _sizes(cells: Sequence[Cell]) -> list[int]:
    return sorted({cell["bytes"] for cell in cells})


def _ranks(cells: Sequence[Cell]) -> list[int]:
    return sorted({cell["ranks"] for cell in cells})
