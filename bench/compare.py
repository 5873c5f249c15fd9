"""What became slower, beyond noise: `python -m bench compare OLD.json NEW.json`.

Cells that stand in both results are laid beside each other. Where both runs measured gloo in the same rounds, it is how
many times as fast as gloo that is compared, because the machine as a whole may be faster or slower today; elsewhere
it is seconds. A change counts if the quartiles of both do not overlap and the medians differ by more than 5 %. Ends
with 1 if something is slower, with 2 if a file is no result. Peers of ours are not judged.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.units import duration, size_name

Cell = Mapping[str, Any]
Identity = tuple[tuple[str, Any], ...]

SLOWER, FASTER, NOISE, UNKNOWN = "slower", "faster", "the same, within noise", "too few rounds to say"
BEYOND = 0.05
FEWEST_ROUNDS = 3
OUTCOMES = {"rounds", "algorithm", "limit", "settled_on"}  # found, though they are no float
OURS = "ringwide"


class NoResult(Exception):
    """A file that cannot be compared. The text says which, and why."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Lower quartile, median, upper quartile of something; more is better or worse."""

    unit: str
    spread: tuple[float, float, float]
    more_is_better: bool
    rounds: int

    def text(self) -> str:
        low, middle, high = self.spread
        if self.unit == "s":
            return f"{duration(middle)} [{duration(low)} - {duration(high)}]"
        return f"{middle:.2f}x [{low:.2f} - {high:.2f}]"


@dataclass(frozen=True, slots=True)
class Change:
    place: str
    old: Figure
    new: Figure
    beyond: float

    @property
    def speed(self) -> float:
        """How many times as fast it is now."""
        now, then = self.new.spread[1], self.old.spread[1]
        return now / then if self.new.more_is_better else then / now

    @property
    def verdict(self) -> str:
        if min(self.old.rounds, self.new.rounds) < FEWEST_ROUNDS:
            return UNKNOWN
        apart = self.old.spread[2] < self.new.spread[0] or self.new.spread[2] < self.old.spread[0]
        if not apart or 1 / (1 + self.beyond) <= self.speed <= 1 + self.beyond:
            return NOISE
        return FASTER if self.speed > 1 else SLOWER


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", type=Path, help="a result, as bench/results/speed.json")
    parser.add_argument("new", type=Path, help="a later one of the same benchmark")
    parser.add_argument(
        "--beyond", type=float, default=BEYOND, help="changes up to this part are not told (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> None:
    try:
        old, new = read_cells(options.old), read_cells(options.new)
        changes = compare(old, new, options.beyond)
        text = told(changes)
    except NoResult as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ) as error:  # it would end with 1: slower
        print(f"bench: {options.old} or {options.new} has a cell that makes no sense: {error!r}", file=sys.stderr)
        raise SystemExit(2) from None
    print(text)
    raise SystemExit(int(any(change.verdict == SLOWER for change in changes)))


def read_cells(path: Path) -> dict[Identity, Cell]:
    try:
        report = json.loads(path.read_text())
    except OSError as error:
        raise NoResult(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise NoResult(f"{path} is not JSON; a result is what --save or --into has written") from None
    cells = report.get("cells") if isinstance(report, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise NoResult(f"{path} has no cells; a result is what --save or --into has written")
    return {identity(cell): {"rounds": report.get("rounds", FEWEST_ROUNDS), **cell} for cell in cells}


def identity(cell: Cell) -> Identity:
    """What a cell is about, as opposed to what was found there."""
    about = {key: value for key, value in cell.items() if key not in OUTCOMES and _is_plain(key, value)}
    return tuple(sorted(about.items()))


def _is_plain(key: str, value: Any) -> bool:
    return value is None or isinstance(value, str | int) or key == "rate"


def compare(old: dict[Identity, Cell], new: dict[Identity, Cell], beyond: float = BEYOND) -> list[Change]:
    changes = []
    for about, cell in new.items():
        pair = _figures(old[about], cell) if about in old and is_ours(cell) else None
        if pair is not None:
            changes.append(Change(place_of(about), *pair, beyond))
    if not changes:
        raise NoResult("the two results have no cell in common that has quartiles")
    return changes


def is_ours(cell: Cell) -> bool:
    return str(cell.get("contestant", OURS)).startswith(OURS)


def _figures(old: Cell, new: Cell) -> tuple[Figure, Figure] | None:
    """Of the same kind; gloo's time over ours, if there is one in both."""
    for kind in (_over_gloo, _seconds):
        then, now = kind(old), kind(new)
        if then is not None and now is not None:
            return then, now
    return None


def _over_gloo(cell: Cell) -> Figure | None:
    over = cell.get("over", {}).get("gloo") or cell.get("over_gloo")
    return Figure("gloo / ours", tuple(over), True, _rounds(cell)) if over else None


def _seconds(cell: Cell) -> Figure | None:
    quartiles = cell.get("seconds_quartiles")
    if not quartiles or "seconds" not in cell:
        return None
    return Figure("s", (quartiles[0], cell["seconds"], quartiles[1]), False, _rounds(cell))


def _rounds(cell: Cell) -> int:
    return int(cell.get("rounds", FEWEST_ROUNDS))


def place_of(about: Identity) -> str:
    return ", ".join(_part(key, value) for key, value in about if value is not None)


def _part(key: str, value: Any) -> str:
    if key == "bytes":
        return size_name(value)
    return str(value) if isinstance(value, str) else f"{key} {value:g}"


def told(changes: Sequence[Change]) -> str:
    """Changes as a table, the worst first, and how many cells have none."""
    changed = sorted((one for one in changes if one.verdict in (SLOWER, FASTER)), key=lambda one: one.speed)
    lines = ["| | by | old | new | times as fast | |", "| --- | --- | --: | --: | --: | --- |"] if changed else []
    for one in changed:
        unit = "seconds" if one.new.unit == "s" else one.new.unit
        cells = (one.place, unit, one.old.text(), one.new.text(), f"{one.speed:.2f}", one.verdict)
        lines.append(f"| {' | '.join(cells)} |")
    counts = {verdict: sum(one.verdict == verdict for one in changes) for verdict in (SLOWER, FASTER, NOISE, UNKNOWN)}
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return "\n".join([*lines, f"{len(changes)} cells in both: {summary}"])
