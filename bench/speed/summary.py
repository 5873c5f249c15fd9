"""From turns to figures: medians with quartiles, and ratios of turns that were neighbours."""

import os
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from bench.speed.contestants import GLOO, OURS, RINGWIDE_TCP
from bench.speed.leader import Measured, Turns
from bench.speed.limits import HOPPING, STREAM_TCP, STREAM_UNIX, Probe, least_seconds, stream_seconds

Cell = dict[str, Any]


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    if len(values) == 1:
        return [values[0]] * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def cells_of(measured: Measured, cores: int | None = None) -> list[Cell]:
    """One for each number of ranks, size and contestant."""
    found = Figures(measured, cores or os.cpu_count() or 1)
    return [found.cell(*key) for key, turns in sorted(measured.turns.items()) if turns]


class Figures:
    """All that can be said of a contestant at one place."""

    def __init__(self, measured: Measured, cores: int) -> None:
        self._measured, self._cores = measured, cores

    def cell(self, ranks: int, nbytes: int, name: str) -> Cell:
        turns = self._measured.turns[ranks, nbytes, name]
        others = [GLOO] if name not in OURS else self._contestants(ranks, nbytes)
        cell = {
            "ranks": ranks,
            "bytes": nbytes,
            "contestant": name,
            **times(turns),
            "bytes_per_second": nbytes / statistics.median(turns.values()),
            "over": dict(self._ratios(ranks, nbytes, name, others)),
        }
        if name in OURS:
            algorithm = self._measured.algorithms[ranks, nbytes, name]
            cell |= {"algorithm": algorithm, **self._fractions(ranks, nbytes, name, algorithm)}
        return cell

    def _contestants(self, ranks: int, nbytes: int) -> list[str]:
        return [key[2] for key in self._measured.turns if key[:2] == (ranks, nbytes)]

    def _ratios(self, ranks: int, nbytes: int, name: str, others: list[str]) -> Iterator[tuple[str, list[float]]]:
        """How many times as fast as each other one, in the rounds in which both had a turn."""
        ours = self._measured.turns[ranks, nbytes, name]
        for other in others:
            theirs = self._measured.turns.get((ranks, nbytes, other), {})
            shared = ours.keys() & theirs.keys()
            if other != name and shared:
                yield other, quartiles([theirs[number] / ours[number] for number in sorted(shared)])

    def _fractions(self, ranks: int, nbytes: int, name: str, algorithm: str) -> Cell:
        """The time that the limit allows over ours, round by round."""
        tcp = name == RINGWIDE_TCP
        another, key = (STREAM_TCP, "fraction_tensors") if tcp else (STREAM_UNIX, "fraction_unix")
        limit, allowed = "", []
        found: dict[str, list[float]] = {}
        for number, taken in self._measured.turns[ranks, nbytes, name].items():
            seconds = self._probes(ranks, nbytes, number)
            least = least_seconds("tcp" if tcp else "same host", algorithm, ranks, nbytes, seconds, self._cores)
            if least is not None:
                limit = least[0]
                allowed.append(least[1])
                found.setdefault("fraction", []).append(least[1] / taken)
            beside = None if algorithm in HOPPING else stream_seconds(another, ranks, nbytes, seconds)
            if beside is not None:
                found.setdefault(key, []).append(beside / taken)
        if not allowed:
            return {}
        spreads = {key: quartiles(values) for key, values in found.items()}
        return {"limit": limit, "limit_seconds": statistics.median(allowed), **spreads}

    def _probes(self, ranks: int, nbytes: int, number: int) -> dict[Probe, float]:
        """What was tried with the machine in this round, at this place."""
        return {
            probe: turns[number]
            for (at_ranks, at_bytes, probe), turns in self._measured.probes.items()
            if (at_ranks, at_bytes) == (ranks, nbytes) and number in turns
        }


def limits_of(measured: Measured) -> list[Cell]:
    """What was found out about the machine: the time for so many bytes, and as a rate."""
    ordered = sorted(measured.probes.items(), key=lambda item: (item[0][:2], item[0][2].what, item[0][2].nbytes))
    return [
        {
            "ranks": ranks,
            "bytes": nbytes,
            "probe": probe.what,
            "probe_bytes": probe.nbytes,
            **times(turns),
            "bytes_per_second": probe.nbytes / statistics.median(turns.values()),
        }
        for (ranks, nbytes, probe), turns in ordered
    ]


def times(turns: Turns) -> Cell:
    low, middle, high = quartiles(list(turns.values()))
    return {"rounds": len(turns), "seconds": middle, "seconds_quartiles": [low, high]}
