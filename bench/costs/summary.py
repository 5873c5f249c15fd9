"""What the cost curves make of the figures that ranks bring home: cells, with medians and quartiles."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from bench.spread import quartiles, ratios

Cell = dict[str, Any]
GIGABYTE = 1e9
SECONDS, USER, SYSTEM = range(3)


def spread(name: str, values: Sequence[float]) -> Cell:
    low, middle, high = quartiles(values)
    return {name: middle, f"{name}_quartiles": [low, high]}


def times(of_ranks: Sequence[Sequence[Cell]]) -> Iterator[Cell]:
    """A turn is as long as its slowest rank says."""
    for cells in zip(*of_ranks, strict=True):
        turns = {library: _by_turn(cells, library, SECONDS, max) for library in cells[0]["turns"]}
        for library, seconds in turns.items():
            yield {
                **_what(cells),
                "contestant": library,
                **spread("seconds", seconds),
                "over_gloo": ratios(turns["gloo"], seconds),
            }


def processor(of_ranks: Sequence[Sequence[Cell]]) -> Iterator[Cell]:
    """Of all ranks together, for a gigabyte of the tensors that they bring: what a rank pays for a gigabyte of its own.

    The kernel only estimates which part of a turn was its own, so that is told for all turns together.
    """
    for cells in zip(*of_ranks, strict=True):
        gigabytes = len(cells) * cells[0]["bytes"] / GIGABYTE
        for library in cells[0]["turns"]:
            user, system = (_by_turn(cells, library, part, sum) for part in (USER, SYSTEM))
            yield {
                **_what(cells),
                "contestant": library,
                **spread("seconds", [(one + other) / gigabytes for one, other in zip(user, system, strict=True)]),
                "user_seconds": sum(user) / len(user) / gigabytes,
                "system_seconds": sum(system) / len(system) / gigabytes,
            }


def _what(cells: Sequence[Cell]) -> Cell:
    return {"ranks": len(cells), "bytes": cells[0]["bytes"], "algorithm": cells[0]["algorithm"]}


def _by_turn(cells: Sequence[Cell], library: str, part: int, together: Any) -> list[float]:
    of_ranks = zip(*(cell["turns"][library] for cell in cells), strict=True)
    return [together(figures[part] for figures in of_turn) for of_turn in of_ranks]


def joined(of_ranks: Sequence[dict[str, list[float]]], *, torch: bool) -> Iterator[Cell]:
    """A ring has formed when its last rank has joined."""
    for library in of_ranks[0]:
        seconds = [max(taken) for taken in zip(*(found[library] for found in of_ranks), strict=True)]
        yield {"ranks": len(of_ranks), "contestant": library, "torch": torch, **spread("seconds", seconds)}


def memory(of_ranks: Sequence[dict[str, list[int]]], *, library: str, nbytes: int) -> Cell:
    """After the last call, a median over the ranks; and after the first one, to see whether it grows."""
    last = {name: spread(f"{name}_bytes", [found[name][-1] for found in of_ranks]) for name in of_ranks[0]}
    return {
        "ranks": len(of_ranks),
        "bytes": nbytes,
        "contestant": library,
        "calls": len(of_ranks[0]["peak"]),
        "first_peak_bytes": quartiles([found["peak"][0] for found in of_ranks])[1],
        **{key: value for figures in last.values() for key, value in figures.items()},
    }


def allocations(of_ranks: Sequence[Sequence[Cell]]) -> Iterator[Cell]:
    """The rank that holds most at the end, compared with itself halfway: what grows has grown since."""
    for cells in zip(*of_ranks, strict=True):
        steps = len(cells[0]["live_bytes"]) // 2
        worst = max(cells, key=lambda cell: cell["live_blocks"][-1] - cell["live_blocks"][-1 - steps])
        calls = steps * worst["calls"]
        yield {
            **_what(cells),
            "calls": calls,
            "more_bytes_a_call": (worst["live_bytes"][-1] - worst["live_bytes"][-1 - steps]) / calls,
            "more_blocks_a_call": (worst["live_blocks"][-1] - worst["live_blocks"][-1 - steps]) / calls,
            "cyclic_a_call": sum(worst["cyclic"]) / len(worst["cyclic"]) / worst["calls"],
            "grows": grows(worst["live_blocks"], steps),
            **spread("peak_bytes", [peak for cell in cells for peak in cell["peak_bytes"]]),
            "live_blocks": worst["live_blocks"],
            "calls_a_step": worst["calls"],
        }


def grows(live: Sequence[int], steps: int) -> bool:
    """Step by step. What comes and goes, or comes once, does not."""
    last = live[-1 - steps :]
    return all(later > earlier for earlier, later in pairwise(last))
