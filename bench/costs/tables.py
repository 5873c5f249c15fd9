"""The cost curves as tables, for a terminal and for the documents."""

from collections.abc import Callable, Sequence
from typing import Any

from bench.costs.summary import Cell
from bench.units import duration, size_name

MIB = 2**20
Rows = list[list[str]]


def markdown(report: dict[str, Any]) -> str:
    """All tables that were measured, each under its name."""
    return "\n\n".join(f"{title(name)}\n\n{table(report, name)}" for name in SECTIONS if cells_of(report, name))


def cells_of(report: dict[str, Any], name: str) -> list[Cell]:
    """One of the curves."""
    return [cell for cell in report["cells"] if cell["curve"] == name]


def title(name: str) -> str:
    return SECTIONS[name][0]


def table(report: dict[str, Any], name: str) -> str:
    """One of them, to stand anywhere in a document."""
    _, heading, rows_of = SECTIONS[name]
    alignment = ["--:" if column not in LEFT else "---" for column in heading]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, alignment, *rows_of(cells_of(report, name))))


def _times(cells: Sequence[Cell]) -> Rows:
    rows = []
    for ours, gloo in _beside_gloo(cells):
        low, ratio, high = ours["over_gloo"]
        rows.append(
            [
                *_place(ours),
                ours["algorithm"],
                duration(gloo["seconds"]),
                duration(ours["seconds"]),
                _durations(ours["seconds_quartiles"]),
                f"{ratio:.2f}x",
                f"{low:.2f} - {high:.2f}",
            ]
        )
    return rows


def _processor(cells: Sequence[Cell]) -> Rows:
    return [
        [
            *_place(ours),
            *(text for cell in (gloo, ours) for text in _shares(cell)),
            f"{gloo['seconds'] / ours['seconds']:.2f}x",
        ]
        for ours, gloo in _beside_gloo(cells)
    ]


def _shares(cell: Cell) -> list[str]:
    low, high = cell["seconds_quartiles"]
    total = f"{cell['seconds']:.2f} [{low:.2f} - {high:.2f}]"
    return [total, f"{cell['user_seconds']:.2f} + {cell['system_seconds']:.2f}"]


def _memory(cells: Sequence[Cell]) -> Rows:
    return [
        [
            *_place(cell),
            cell["contestant"],
            *(_mebibytes(cell[name]) for name in ("first_peak_bytes", "peak_bytes", "resident_bytes")),
            _mebibytes(cell["proportional_bytes"]),
            f"{cell['peak_bytes'] / cell['bytes']:.2f}",
        ]
        for cell in cells
    ]


def _allocations(cells: Sequence[Cell]) -> Rows:
    return [
        [
            *_place(cell),
            cell["algorithm"],
            f"{cell['calls']:,}",
            f"{cell['more_blocks_a_call']:+.3f}",
            f"{cell['more_bytes_a_call']:+.2f}",
            f"{cell['cyclic_a_call']:.2f}",
            f"{cell['peak_bytes'] / 1024:.1f} KiB",
            "**grows**" if cell["grows"] else "steady",
        ]
        for cell in cells
    ]


def _join(cells: Sequence[Cell]) -> Rows:
    found = {(cell["ranks"], cell["contestant"], cell["torch"]): cell for cell in cells}
    ways = (("ringwide", False), ("ringwide", True), ("gloo", True))
    return [
        [str(ranks), *(text for way in ways for text in _joined(found.get((ranks, *way))))]
        for ranks in sorted({cell["ranks"] for cell in cells})
    ]


def _joined(cell: Cell | None) -> list[str]:
    return ["-", "-"] if cell is None else [duration(cell["seconds"]), _durations(cell["seconds_quartiles"])]


def _beside_gloo(cells: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    gloo = {(cell["ranks"], cell["bytes"]): cell for cell in cells if cell["contestant"] == "gloo"}
    return [(cell, gloo[cell["ranks"], cell["bytes"]]) for cell in cells if cell["contestant"] == "ringwide"]


def _place(cell: Cell) -> list[str]:
    return [str(cell["ranks"]), size_name(cell["bytes"])]


def _durations(ends: Sequence[float]) -> str:
    return " - ".join(map(duration, ends))


def _mebibytes(nbytes: float) -> str:
    return f"{nbytes / MIB:.1f}"


LEFT = ("algorithm", "quartiles", "user + system", "")
SECTIONS: dict[str, tuple[str, list[str], Callable[[Sequence[Cell]], Rows]]] = {
    "time": (
        "Time of one all-reduce, over the number of ranks",
        ["ranks", "size", "algorithm", "gloo", "ringwide", "quartiles", "gloo / ringwide", "quartiles"],
        _times,
    ),
    "processor": (
        "Processor seconds of a rank for a gigabyte of its tensors",
        ["ranks", "size", "gloo", "user + system", "ringwide", "user + system", "gloo / ringwide"],
        _processor,
    ),
    "memory": (
        "Memory of a rank beyond its tensor, MiB",
        ["ranks", "size", "", "first call's peak", "peak", "resident", "proportional", "peak / tensor"],
        _memory,
    ),
    "allocations": (
        "What the interpreter holds more after a call, and needs in it",
        ["ranks", "size", "algorithm", "calls", "blocks", "bytes", "in cycles", "needed meanwhile", ""],
        _allocations,
    ),
    "join": (
        "Time until all ranks have joined",
        ["ranks", "ringwide", "quartiles", "ringwide, torch imported", "quartiles", "gloo", "quartiles"],
        _join,
    ),
}
