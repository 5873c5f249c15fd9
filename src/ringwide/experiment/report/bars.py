"""Bars with their words above them: a name of any length has its own line, and cannot run into another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringwide.experiment.report.drawing import FAINT, GRID, SERIES, Plot, drawn
from ringwide.experiment.report.units import Form

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    """None if there is nothing to compare. Of very many only the longest are drawn, in the order they came in."""
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
    """Long names differ at their ends as often as at their beginnings."""
    if len(name) <= LONGEST_NAME:
        return name
    half = (LONGEST_NAME - 1) // 2
    return f"{name[:half]}…{name[-half:]}"
