"""Drawing of plots as SVG to embed in a page: its font and its colours, in the light and the dark scheme.

matplotlib writes colours as numbers. Each of our colours is drawn as a number used for nothing else, and replaced by a
CSS variable afterwards, so one picture serves both colour schemes.
"""

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringwide.experiment.report.units import Form

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WIDTH_INCHES = 5.6  # about 400 units of SVG: wide enough for half a desk, narrow enough to be read on a phone
HEIGHT_INCHES = 3.0
INK, FAINT, GRID, CARD = "#fd0001", "#fd0002", "#fd0003", "#fd0004"
SERIES = tuple(f"#fe000{number}" for number in range(1, 8))
VARIABLES = {INK: "--ink", FAINT: "--faint", GRID: "--grid", CARD: "--card"} | {c: f"--series-{c[-1]}" for c in SERIES}
DASHES = ("solid", "dashed", "dotted")
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": FAINT,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True, slots=True)
class Swatch:
    """One line of a legend. Its kind is one of `DASHES`, "area", "band" or "point"."""

    name: str
    color: str
    kind: str = "solid"

    @property
    def variable(self) -> str:
        return VARIABLES[self.color]


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    svg: str
    legend: tuple[Swatch, ...] = ()
    caption: str = ""


def series(number: int) -> tuple[str, str]:
    """Colour and dash of a line, unique for the first 21."""
    return SERIES[number % len(SERIES)], DASHES[number // len(SERIES) % len(DASHES)]


def drawn(draw: Callable[["Axes"], object], *, height: float = HEIGHT_INCHES) -> str:
    """SVG for embedding in HTML of what `draw` puts on a pair of axes."""
    with _style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(WIDTH_INCHES, height))
        draw(figure.add_subplot())
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True)
    return fit_for_a_page(out.getvalue())


def step_axis(axes: "Axes") -> None:
    axes.set_xlabel("step")
    whole_numbers(axes, most=7)


def whole_numbers(axes: "Axes", *, most: int) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.xaxis.set_major_locator(MaxNLocator(most, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


@contextmanager
def _style() -> Iterator[None]:
    from matplotlib import rc_context

    with rc_context(STYLE):
        yield


def fit_for_a_page(svg: str) -> str:
    """SVG without prologue, namespaces, size and unused ids: the page sets the width, and ids must not clash."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'^<svg width="[^"]*" height="[^"]*"|^<svg height="[^"]*"', "<svg", svg)
    used = set(re.findall(r'(?:url\(|href=")#([\w-]+)', svg))
    svg = re.sub(r' id="([\w.-]+)"', lambda found: found[0] if found[1] in used else "", svg)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    return svg


# -- bars, with each name on a line of its own above its bar, so that long names cannot overlap

INCHES_EACH = 0.42
LONGEST_NAME = 54
MAX_BARS = 30


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float | None
    ours: bool = True

    @property
    def length(self) -> float:
        return self.value if self.value is not None and math.isfinite(self.value) else 0.0


def bars(title: str, given: Sequence[Bar], form: Form) -> Plot | None:
    """Bar chart, or None if there is nothing to compare. Of too many bars the longest are drawn, in the order given."""
    if not any(bar.length for bar in given):
        return None
    shown = sorted(sorted(given, key=lambda bar: -bar.length)[:MAX_BARS], key=given.index)
    longest = max(bar.length for bar in shown)

    def draw(axes: "Axes") -> None:
        for row, bar in enumerate(shown):
            axes.barh(row, longest, height=0.34, color=GRID, alpha=0.5)
            axes.barh(row, bar.length, height=0.34, color=SERIES[0] if bar.ours else FAINT)
            axes.text(0, row - 0.27, shortened(bar.name), ha="left", va="bottom", parse_math=False)
            axes.text(longest, row - 0.27, form(bar.value), ha="right", va="bottom", parse_math=False)
        axes.set(xlim=(0, longest), ylim=(len(shown) - 0.75, -0.85))
        axes.set_axis_off()

    left_out = len(given) - len(shown)
    caption = f"The {MAX_BARS} highest of {len(given)}." if left_out else ""
    return Plot(title, drawn(draw, height=0.1 + INCHES_EACH * len(shown)), caption=caption)


def shortened(name: str) -> str:
    """Name with its middle cut out: long names differ at either end."""
    if len(name) <= LONGEST_NAME:
        return name
    half = (LONGEST_NAME - 1) // 2
    return f"{name[:half]}…{name[-half:]}"
