"""Numbers formatted for people: three digits and a unit. An unknown number is an en dash."""

import math
from collections.abc import Callable
from functools import wraps

MISSING = "–"
Form = Callable[[float | None], str]
BINARY_UNITS = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))


def _form(finite: Callable[[float], str]) -> Form:
    @wraps(finite)
    def formatted(value: float | None) -> str:
        if value is None:
            return MISSING
        if math.isfinite(value):
            return finite(value)
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"

    return formatted


@_form
def count(value: float) -> str:
    return f"{value:,.0f}"


@_form
def number(value: float) -> str:
    """Three significant digits, and all digits of the integer part."""
    size = abs(value)
    if value == 0 or size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:#.3g}"


@_form
def size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{number(value)} {unit}"
        value /= 1000
    return f"{number(value)} TB"


@_form
def speed(value: float) -> str:
    return f"{size(value)}/s"


@_form
def duration(value: float) -> str:
    if value == 0 or 1 <= value < 100:
        return f"{number(value)} s"
    if value < 1:
        return f"{number(value * 1e3)} ms" if value >= 1e-3 else f"{number(value * 1e6)} µs"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes} min {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


@_form
def loss(value: float) -> str:
    return f"{value:#.4g}".rstrip(".") if abs(value) < 1e4 else f"{value:.4g}"


@_form
def share(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")


@_form
def ratio(value: float) -> str:
    return f"{number(value)}×"


def exact_size(value: int) -> str:
    """Size from a configuration, in binary units and not rounded."""
    for factor, unit in BINARY_UNITS:
        if value and value % factor == 0:
            return f"{value // factor:,} {unit}"
    return f"{value:,} B"
