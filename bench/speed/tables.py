"""The tables of a report, in Markdown."""

from typing import Any

from bench.speed.contestants import GLOO, MPICH, OPENMPI_SHM, OPENMPI_TCP, OURS, RINGWIDE, RINGWIDE_TCP
from bench.units import duration, size_name

Cell = dict[str, Any]

COLUMNS = {
    GLOO: "gloo",
    OPENMPI_TCP: "Open MPI, TCP",
    OPENMPI_SHM: "Open MPI, shm",
    MPICH: "MPICH, shm",
    RINGWIDE_TCP: "ringwide, TCP",
    RINGWIDE: "ringwide, same host",
}
NOTHING = "-"


def by_place(report: dict[str, Any]) -> dict[tuple[int, int], dict[str, Cell]]:
    """Cells by ranks and bytes, then by contestant."""
    places: dict[tuple[int, int], dict[str, Cell]] = {}
    for cell in report["cells"]:
        places.setdefault((cell["ranks"], cell["bytes"]), {})[cell["contestant"]] = cell
    return dict(sorted(places.items()))


def markdown(report: dict[str, Any]) -> str:
    """The compact one, as the README shows it: times, and how many times as fast as gloo we are."""
    present = [name for name in COLUMNS if any(cell["contestant"] == name for cell in report["cells"])]
    ours = [name for name in OURS if name in present and GLOO in present]
    titles = ["ranks", "size", *(COLUMNS[name] for name in present), *(f"gloo / {COLUMNS[name]}" for name in ours)]
    rows = [
        [
            str(ranks),
            size_name(nbytes),
            *(_time(cells.get(name)) for name in present),
            *(_ratio(cells.get(name)) for name in ours),
        ]
        for (ranks, nbytes), cells in by_place(report).items()
    ]
    return "\n".join(_line(row) for row in [titles, ["--:"] * len(titles), *rows])


def _line(row: list[str]) -> str:
    return f"| {' | '.join(row)} |"


def _time(cell: Cell | None) -> str:
    return NOTHING if cell is None else duration(cell["seconds"])


def _ratio(cell: Cell | None) -> str:
    return spread(cell["over_gloo"]) if cell and "over_gloo" in cell else NOTHING


def spread(found: list[float]) -> str:
    low, middle, high = found
    return f"**{middle:.2f}x** [{low:.2f} - {high:.2f}]"


def fractions(report: dict[str, Any]) -> str:
    """Our cells beside the limit."""
    rows = [
        [
            str(cell["ranks"]),
            size_name(cell["bytes"]),
            COLUMNS[cell["contestant"]],
            cell["algorithm"],
            duration(cell["seconds"]),
            cell["limit"],
            duration(cell["limit_seconds"]),
            "{1:.2f} [{0:.2f} - {2:.2f}]".format(*cell["fraction"]),
        ]
        for cell in report["cells"]
        if "limit" in cell
    ]
    titles = ["ranks", "size", "", "algorithm", "time", "limit", "allows", "fraction [quartiles]"]
    aligned = ["--:", "--:", "---", "---", "--:", "---", "--:", "--:"]
    return "\n".join(_line(row) for row in [titles, aligned, *rows])


def skipped(report: dict[str, Any]) -> str:
    return "\n".join(f"{one['contestant']}{_where(one)} is skipped: {one['reason']}" for one in report["skipped"])


def _where(one: Cell) -> str:
    return f" at {one['ranks']} ranks" if one["ranks"] else ""


def shown(report: dict[str, Any]) -> str:
    """Everything, for a terminal."""
    return "\n\n".join(part for part in (markdown(report), fractions(report), skipped(report)) if part)
