"""The tables of a report, in Markdown."""

from typing import Any

from bench.speed.contestants import GLOO, MPICH, OPENMPI_SHM, OPENMPI_TCP, OURS, RINGWIDE, RINGWIDE_TCP
from bench.speed.limits import ADD, COPY, PING_TCP, PING_UNIX, STREAM_CACHED, STREAM_TCP, STREAM_UNIX
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
PINGS = (PING_TCP, PING_UNIX)
PROBES = {
    PING_TCP: "TCP, there and back",
    PING_UNIX: "Unix, there and back",
    STREAM_TCP: "TCP, each way",
    STREAM_CACHED: "TCP in the cache, each way",
    STREAM_UNIX: "Unix, each way",
    COPY: "copy",
    ADD: "add",
}
NOTHING = "-"
README_BYTES = (4 * 2**10, 2**20, 64 * 2**20)


def by_place(report: dict[str, Any]) -> dict[tuple[int, int], dict[str, Cell]]:
    """Cells by ranks and bytes, then by contestant."""
    places: dict[tuple[int, int], dict[str, Cell]] = {}
    for cell in report["cells"]:
        places.setdefault((cell["ranks"], cell["bytes"]), {})[cell["contestant"]] = cell
    return dict(sorted(places.items()))


def readme(report: dict[str, Any]) -> str:
    """The sizes that tell regimes apart."""
    return markdown({**report, "cells": [cell for cell in report["cells"] if cell["bytes"] in README_BYTES]})


def markdown(report: dict[str, Any]) -> str:
    """Times, and how many times as fast as gloo we are."""
    present = [name for name in COLUMNS if any(cell["contestant"] == name for cell in report["cells"])]
    ours = [name for name in OURS if name in present and GLOO in present]
    titles = ["ranks", "size", *(COLUMNS[name] for name in present), *(f"gloo / {COLUMNS[name]}" for name in ours)]
    rows = [
        [
            str(ranks),
            size_name(nbytes),
            *(_time(cells.get(name)) for name in present),
            *(_over_gloo(cells.get(name)) for name in ours),
        ]
        for (ranks, nbytes), cells in by_place(report).items()
    ]
    return table(titles, ["--:"] * len(titles), rows)


def bars(report: dict[str, Any]) -> str:
    """What was asked for, and whether it was reached at every size of the row."""
    rows = [
        [
            bar["bar"],
            str(bar["ranks"]),
            f"{bar['asked']:g}",
            f"{bar['least']:.2f} - {bar['most']:.2f}" if bar["sizes"] > 1 else f"{bar['least']:.2f}",
            "met" if bar["met"] else "**missed**",
        ]
        for bar in report["bars"]
    ]
    return table(["", "ranks", "asked", "measured", ""], ["---", "--:", "--:", "--:", "---"], rows) if rows else ""


def fractions(report: dict[str, Any]) -> str:
    """Our cells beside the limit, and beside another measure: raw TCP with whole tensors, or Unix-domain sockets."""
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
            _beside_another(cell),
        ]
        for cell in report["cells"]
        if "limit" in cell
    ]
    titles = ["ranks", "size", "", "algorithm", "time", "limit", "allows", "fraction [quartiles]", "of another"]
    aligned = ["--:", "--:", "---", "---", "--:", "---", "--:", "--:", "---"]
    return table(titles, aligned, rows) if rows else ""


def _beside_another(cell: Cell) -> str:
    if "fraction_tensors" in cell:
        return f"{cell['fraction_tensors'][1]:.2f} of raw TCP with whole tensors"
    return f"{cell['fraction_unix'][1]:.2f} of raw Unix sockets" if "fraction_unix" in cell else ""


def limits(report: dict[str, Any]) -> str:
    """What the machine itself did in the same rounds: rates each way, round trips, copies and sums."""
    places: dict[tuple[int, int], dict[str, Cell]] = {}
    for cell in report["limits"]:
        places.setdefault((cell["ranks"], cell["bytes"]), {})[cell["probe"]] = cell
    rows = [
        [str(ranks), size_name(nbytes), *(_probed(probes.get(probe)) for probe in PROBES)]
        for (ranks, nbytes), probes in sorted(places.items())
    ]
    titles = ["beside ranks", "and size", *PROBES.values()]
    return table(titles, ["--:"] * len(titles), rows) if rows else ""


def _probed(cell: Cell | None) -> str:
    """A round trip as a time, all else as a rate."""
    if cell is None:
        return NOTHING
    return duration(cell["seconds"]) if cell["probe"] in PINGS else f"{cell['bytes_per_second'] / 1e9:.2f} GB/s"


def skipped(report: dict[str, Any]) -> str:
    return "\n".join(f"{one['contestant']}{_where(one)} is skipped: {one['reason']}" for one in report["skipped"])


def shown(report: dict[str, Any]) -> str:
    """Everything, for a terminal."""
    parts = (markdown(report), slow(report), limits(report), fractions(report), bars(report), skipped(report))
    return "\n\n".join(part for part in parts if part)


def slow(report: dict[str, Any]) -> str:
    """Those that have no column, as they were measured at few sizes and in few rounds."""
    rows = [
        [
            cell["contestant"],
            str(cell["ranks"]),
            size_name(cell["bytes"]),
            duration(cell["seconds"]),
            *(_over(cells.get(name), cell["contestant"]) for name in OURS),
        ]
        for cells in by_place(report).values()
        for cell in cells.values()
        if cell["contestant"] not in COLUMNS
    ]
    titles = ["", "ranks", "size", "time", *(f"its time / {COLUMNS[name]}" for name in OURS)]
    return table(titles, ["---", "--:", "--:", "--:", "--:", "--:"], rows) if rows else ""


def table(titles: list[str], aligned: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, aligned, *rows])


def spread(found: list[float]) -> str:
    low, middle, high = found
    return f"**{middle:.2f}x** [{low:.2f} - {high:.2f}]"


def _time(cell: Cell | None) -> str:
    return NOTHING if cell is None else duration(cell["seconds"])


def _over_gloo(cell: Cell | None) -> str:
    return _over(cell, GLOO)


def _over(cell: Cell | None, other: str) -> str:
    return spread(cell["over"][other]) if cell and other in cell["over"] else NOTHING


def _where(one: Cell) -> str:
    return f" at {one['ranks']} ranks" if one["ranks"] else ""
