"""What was asked for, beside what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.speed.contestants import GLOO, OPENMPI_SHM, OPENMPI_TCP, RINGWIDE, RINGWIDE_TCP

KB, MB = 2**10, 2**20
SMALL, MIDDLE, LARGE = (KB, 64 * KB), (MB, MB), (16 * MB, 256 * MB)
FRACTION, FRACTION_TENSORS = "fraction", "fraction_tensors"

TITLES = {RINGWIDE_TCP: "over TCP", RINGWIDE: "on the same host"}
OTHERS = {
    GLOO: "beside gloo",
    OPENMPI_TCP: "beside Open MPI's TCP",
    OPENMPI_SHM: "beside Open MPI's shared memory",
    FRACTION: "a fraction of the raw TCP limit",
    FRACTION_TENSORS: "a fraction of raw TCP with whole tensors",  # what "raw TCP" could mean as well; not a limit
}
RANGES = {SMALL: "1 to 64 KB", MIDDLE: "1 MB", LARGE: "16 to 256 MB"}


@dataclass(frozen=True, slots=True)
class Bar:
    """So many times as fast as another, or such a part of the limit, at every size from the least to the largest."""

    sizes: tuple[int, int]
    contestant: str
    beside: str
    asked: dict[int, float]  # by number of ranks

    @property
    def title(self) -> str:
        return f"{RANGES[self.sizes]}, {TITLES[self.contestant]}, {OTHERS[self.beside]}"


def _for_all(two: float, four: float, eight: float) -> dict[int, float]:
    return {2: two, 4: four, 8: eight}


BARS = (
    Bar(SMALL, RINGWIDE_TCP, GLOO, _for_all(8, 15, 15)),
    Bar(SMALL, RINGWIDE, GLOO, _for_all(8, 15, 15)),
    Bar(SMALL, RINGWIDE_TCP, OPENMPI_TCP, _for_all(0.5, 0.5, 0.7)),
    Bar(SMALL, RINGWIDE, OPENMPI_TCP, _for_all(0.5, 0.5, 0.7)),
    Bar(MIDDLE, RINGWIDE_TCP, GLOO, _for_all(2, 2, 2)),
    Bar(MIDDLE, RINGWIDE, GLOO, _for_all(2, 3, 4)),
    Bar(LARGE, RINGWIDE_TCP, GLOO, _for_all(1.5, 1.1, 1.0)),
    Bar(LARGE, RINGWIDE, GLOO, _for_all(1.8, 1.8, 1.5)),
    Bar(LARGE, RINGWIDE, OPENMPI_SHM, _for_all(0.8, 0.8, 0.8)),
    Bar(LARGE, RINGWIDE_TCP, FRACTION, _for_all(0.85, 0.85, 0.8)),
    Bar(LARGE, RINGWIDE_TCP, FRACTION_TENSORS, _for_all(0.85, 0.85, 0.8)),
)


def judge(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each bar for each number of ranks, if any of its sizes was measured; all of them have to reach it."""
    verdicts = []
    for bar in BARS:
        for ranks, asked in bar.asked.items():
            found = [figure for cell in cells if (figure := _figure(bar, ranks, cell)) is not None]
            if found:
                least = min(found)
                verdict = {"bar": bar.title, "ranks": ranks, "asked": asked, "least": least, "most": max(found)}
                verdicts.append({**verdict, "sizes": len(found), "met": least >= asked})
    return verdicts


def _figure(bar: Bar, ranks: int, cell: dict[str, Any]) -> float | None:
    """The median, if this cell is one of the bar's."""
    least, largest = bar.sizes
    if cell["contestant"] != bar.contestant or cell["ranks"] != ranks or not least <= cell["bytes"] <= largest:
        return None
    spread = cell["over"].get(bar.beside) or cell.get(bar.beside)
    return None if spread is None else float(spread[1])
