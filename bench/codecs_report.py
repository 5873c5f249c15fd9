"""What the codec benchmark makes of its turns: figures, the bars they should reach, tables."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from bench.spread import quartiles, ratios

Cell = dict[str, Any]

LINE_RATE, NEAR_THE_BEST, NEAR_NONE = 0.94, 1.05, 1.03
LOSSLESS_CHOICES = ("none", "lz4")
LOSSY_CHOICES = (*LOSSLESS_CHOICES, "bf16", "fp16", "int8")
GIGABIT, HUNDRED_MEGABIT = 1e9, 1e8


def summarise(
    variants: Sequence[dict[str, Any]], played: Sequence[Cell], *, rate: float | None, nbytes: int, hosts: int
) -> list[Cell]:
    """Medians with quartiles, and ratios turn by turn."""
    turns = {(variant["name"], variant["data"]): cell for variant, cell in zip(variants, played, strict=True)}
    lesser = {(variant["name"], variant["data"]) for variant in variants if variant["lesser"]}
    carried = 2 * (hosts - 1) / hosts * nbytes  # by each link, if nothing is encoded
    cells = []
    for (name, data), cell in turns.items():
        low, seconds, high = quartiles(cell["seconds"])
        wire_bytes = statistics.median(cell["wire_bytes"])
        cells.append(
            {
                "rate": rate,
                "variant": name,
                "data": data,
                "lesser": (name, data) in lesser,
                "rounds": len(cell["seconds"]),
                "seconds": seconds,
                "seconds_quartiles": [low, high],
                "bytes_per_second": nbytes / seconds,
                "bus_bytes_per_second": carried / seconds,
                "line_fraction": carried * 8 / seconds / rate if rate else None,
                "over_none": _ratio(turns.get(("none", data)), cell),
                "over_gloo": _ratio(turns.get(("gloo", "gaussian")), cell),  # gloo sends zeros as it sends all else
                "wire_bytes": wire_bytes or None,
                "wire_ratio": carried / wire_bytes if wire_bytes else None,
                "settled_on": cell["settled_on"],
            }
        )
    return cells


def _ratio(other: Cell | None, cell: Cell) -> list[float] | None:
    """How many times as fast as the other, turn by turn, in those rounds in which both had one: the first ones."""
    if other is None:
        return None
    rounds = min(len(other["seconds"]), len(cell["seconds"]))
    return ratios(other["seconds"][:rounds], cell["seconds"][:rounds])


# The bars


def judge(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Which bars are reached. A bar for something that was not measured is left out."""
    at = {(cell["rate"], cell["variant"], cell["data"]): cell for cell in cells}
    rates = dict.fromkeys(cell["rate"] for cell in cells)
    found = [
        *_bars_of_none(at),
        *_bars_of_speed(at),
        *(bar for rate in rates for bar in _bars_of_auto(at, rate)),
        *(bar for rate in rates for bar in _bars_of_lz4(at, rate)),
    ]
    return [{"bar": bar, "found": text, "met": met} for bar, text, met in found]


Cells = dict[tuple[float | None, str, str], Cell]
Bar = tuple[str, str, bool]


def _bars_of_none(at: Cells) -> Iterator[Bar]:
    for rate in (GIGABIT, HUNDRED_MEGABIT):
        if cell := at.get((rate, "none", "gaussian")):
            fraction = cell["line_fraction"]
            yield f"none at {rate_name(rate)} reaches {LINE_RATE} of it", f"{fraction:.3f}", fraction >= LINE_RATE


def _bars_of_speed(at: Cells) -> Iterator[Bar]:
    bars = (
        (GIGABIT, "bf16", "none", 1.85),
        (GIGABIT, "int8", "none", 3.4),
        (HUNDRED_MEGABIT, "int8", "gloo", 3.7),
    )
    for rate, variant, other, wanted in bars:
        cell = at.get((rate, variant, "gaussian"))
        if cell and (ratio := cell[f"over_{other}"]):
            bar = f"{variant} at {rate_name(rate)} is {wanted}x as fast as {other}"
            yield bar, f"{ratio[1]:.2f}x [{ratio[0]:.2f} - {ratio[2]:.2f}]", ratio[1] >= wanted


def _bars_of_auto(at: Cells, rate: float | None) -> Iterator[Bar]:
    cases = (
        ("auto", "gaussian", LOSSLESS_CHOICES),
        ("auto", "zeros", LOSSLESS_CHOICES),
        ("auto, lossy", "gaussian", LOSSY_CHOICES),
    )
    for variant, data, choices in cases:
        cell = at.get((rate, variant, data))
        fixed = [at[rate, choice, data] for choice in choices if (rate, choice, data) in at]
        if cell and fixed:
            best = min(fixed, key=lambda cell: cell["seconds"])
            slower = cell["seconds"] / best["seconds"]
            bar = f"{variant} on {data} at {rate_name(rate)} is within 5 % of the best it may use"
            yield bar, f"{100 * (slower - 1):+.1f} % beside {best['variant']}", slower <= NEAR_THE_BEST


def _bars_of_lz4(at: Cells, rate: float | None) -> Iterator[Bar]:
    if (cell := at.get((rate, "lz4", "gaussian"))) and (ratio := cell["over_none"]):
        slower = 1 / ratio[1]
        bar = f"lz4 on gaussian at {rate_name(rate)} is within 3 % of none"
        yield bar, f"{100 * (slower - 1):+.1f} %", slower <= NEAR_NONE
    if (cell := at.get((rate, "lz4", "zeros"))) and (ratio := cell["wire_ratio"]):
        yield f"lz4 on zeros at {rate_name(rate)} sends a third of the bytes", f"{ratio:.2f}x fewer", ratio >= 3


# Tables


def rate_name(rate: float | None) -> str:
    if rate is None:
        return "loopback"
    return f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"


COLUMNS = (
    "rate",
    "variant",
    "data",
    "seconds",
    "quartiles",
    "bus MB/s",
    "of the line",
    "over none",
    "over gloo",
    "MB sent",
    "ratio",
)
WIDTHS = (10, 19, 8, 8, 15, 8, 11, 18, 18, 8, 6)


def heading() -> str:
    return _line(COLUMNS)


def row(cell: Cell) -> str:
    line = _line(fields(cell))
    return f"{line}\n{'':>{WIDTHS[0]}} {cell['settled_on']}" if cell["settled_on"] else line


def fields(cell: Cell) -> list[str]:
    low, high = cell["seconds_quartiles"]
    return [
        rate_name(cell["rate"]),
        cell["variant"],
        cell["data"],
        f"{cell['seconds']:.3f}",
        f"{low:.3f} - {high:.3f}",
        f"{cell['bus_bytes_per_second'] / 1e6:.1f}",
        _or_dash(cell["line_fraction"], "{:.3f}"),
        _with_quartiles(cell["over_none"]),
        _with_quartiles(cell["over_gloo"]),
        _or_dash(cell["wire_bytes"] and cell["wire_bytes"] / 1e6, "{:.1f}"),
        _or_dash(cell["wire_ratio"], "{:.2f}"),
    ]


def markdown(report: dict[str, Any]) -> str:
    """The figures and the bars, as the documentation shows them."""
    return "\n".join(
        [
            _table(report["cells"]),
            "",
            "| bar | found | |",
            "| --- | --: | --- |",
            *(f"| {bar['bar']} | {bar['found']} | {'met' if bar['met'] else '**missed**'} |" for bar in report["bars"]),
        ]
    )


def lesser_markdown(report: dict[str, Any]) -> str:
    """The codecs that few will want, in a table of their own."""
    return _table(report["lesser"])


def _table(cells: Sequence[Cell]) -> str:
    alignment = ["---"] * 3 + ["--:"] * (len(COLUMNS) - 3)
    return "\n".join(map(_markdown_line, (COLUMNS, alignment, *map(fields, cells))))


def _line(texts: Sequence[str]) -> str:
    return " ".join(f"{text:>{width}}" for text, width in zip(texts, WIDTHS, strict=True))


def _markdown_line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _with_quartiles(ratio: list[float] | None) -> str:
    return "-" if ratio is None else f"{ratio[1]:.2f} [{ratio[0]:.2f} - {ratio[2]:.2f}]"
