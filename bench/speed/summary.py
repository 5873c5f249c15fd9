"""From turns to figures: medians with quartiles, and ratios of turns that were neighbours."""

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.speed.contestants import GLOO, OURS, RINGWIDE_TCP
from bench.speed.leader import Measured, Turns
from bench.speed.limits import STREAM_CACHED, STREAM_UNIX, Probe, least_seconds, stream_seconds

Cell = dict[str, Any]


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    if len(values) == 1:
        return [values[0]] * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def cells_of(measured: Measured, cores: int | None = None) -> list[Cell]:
    """One for each number of ranks, size and contestant."""
    cores = cores or os.cpu_count() or 1
    cells = []
    for (ranks, nbytes, name), turns in sorted(measured.turns.items()):
        if not turns:
            continue
        low, middle, high = quartiles(list(turns.values()))
        cell: Cell = {
            "ranks": ranks,
            "bytes": nbytes,
            "contestant": name,
            "rounds": len(turns),
            "seconds": middle,
            "seconds_quartiles": [low, high],
            "bytes_per_second": nbytes / middle,
        }
        if name != GLOO and (ratio := _ratio(measured.turns.get((ranks, nbytes, GLOO)), turns)):
            cell["over_gloo"] = ratio
        if name in OURS:
            cell |= _ours(measured, ranks, nbytes, name, cores)
        cells.append(cell)
    return cells


def _ours(measured: Measured, ranks: int, nbytes: int, name: str, cores: int) -> Cell:
    """Beside every other contestant, and beside the limit."""
    turns = measured.turns[ranks, nbytes, name]
    others = [key for key in measured.turns if key[:2] == (ranks, nbytes) and key[2] not in (name, GLOO)]
    ratios = {key[2]: _ratio(measured.turns[key], turns) for key in others}
    algorithm = measured.algorithms[ranks, nbytes, name]
    return {
        "algorithm": algorithm,
        "over": {other: ratio for other, ratio in sorted(ratios.items()) if ratio},
        **_fractions("tcp" if name == RINGWIDE_TCP else "same host", algorithm, measured, ranks, nbytes, turns, cores),
    }


def _ratio(others: Turns | None, ours: Turns) -> list[float] | None:
    """How many times as fast as the other, in rounds in which both had a turn: quartiles."""
    shared = [number for number in ours if others is not None and number in others]
    return quartiles([others[number] / ours[number] for number in shared]) if others and shared else None


def _fractions(way: str, algorithm: str, measured: Measured, ranks: int, nbytes: int, turns: Turns, cores: int) -> Cell:
    """The limit's time over ours, round by round."""
    by_round = probes_by_round(measured, ranks, nbytes)
    found: dict[str, list[float]] = {}
    limits, name = [], ""
    for number, taken in turns.items():
        seconds = by_round.get(number, {})
        least = least_seconds(way, algorithm, ranks, nbytes, seconds, cores)
        if least is not None:
            name, limit = least
            limits.append(limit)
            found.setdefault("fraction", []).append(limit / taken)
        for key, what in (("fraction_cached", STREAM_CACHED), ("fraction_unix", STREAM_UNIX)):
            other = stream_seconds(what, ranks, nbytes, seconds)
            if other is not None and algorithm == "ring" and (way == "tcp") == (what == STREAM_CACHED):
                found.setdefault(key, []).append(other / taken)
    if not limits:
        return {}
    return {
        "limit": name,
        "limit_seconds": statistics.median(limits),
        **{key: quartiles(values) for key, values in found.items()},
    }


def probes_by_round(measured: Measured, ranks: int, nbytes: int) -> Mapping[int, dict[Probe, float]]:
    rounds: dict[int, dict[Probe, float]] = {}
    for (probed_ranks, probed_bytes, probe), turns in measured.probes.items():
        if (probed_ranks, probed_bytes) == (ranks, nbytes):
            for number, seconds in turns.items():
                rounds.setdefault(number, {})[probe] = seconds
    return rounds


def limits_of(measured: Measured) -> list[Cell]:
    """What was found out about the machine: the time for so many bytes, and as a rate."""
    cells = []
    for (ranks, nbytes, probe), turns in sorted(
        measured.probes.items(), key=lambda item: (item[0][:2], str(item[0][2]))
    ):
        low, middle, high = quartiles(list(turns.values()))
        cells.append(
            {
                "ranks": ranks,
                "bytes": nbytes,
                "probe": probe.what,
                "probe_bytes": probe.nbytes,
                "rounds": len(turns),
                "seconds": middle,
                "seconds_quartiles": [low, high],
                "bytes_per_second": probe.nbytes / middle,
            }
        )
    return cells
