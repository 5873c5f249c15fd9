"""What the delay benchmark makes of its turns: figures, the bar they should reach, a table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.delay.launch import Link
from bench.spread import quartiles, ratios

Cell = dict[str, Any]
GLOO = "gloo"
BAR_MS, BAR_LANES, BAR_RATIO = 100, 16, 5.0


def summarise(link: Link, turns: Mapping[str, Sequence[float]], *, nbytes: int, ranks: int) -> list[Cell]:
    """Medians with quartiles, and how many times as fast as one lane (or the fewest) and as gloo, turn by turn."""
    cells = []
    fewest = next(seconds for name, seconds in turns.items() if name != GLOO)
    for name, seconds in turns.items():
        count = 1 if name == GLOO else int(name)
        low, middle, high = quartiles(seconds)
        cells.append(
            {
                "round_trip_ms": round(link.round_trip_seconds * 1e3),
                "window_bytes": link.window_bytes,
                "contestant": GLOO if name == GLOO else "ringwide",
                "lanes": count,
                "rounds": len(seconds),
                "seconds": middle,
                "seconds_quartiles": [low, high],
                "bytes_per_second": nbytes / middle,
                "over_fewest": ratios(fewest, seconds),
                "over_gloo": ratios(turns[GLOO], seconds) if GLOO in turns else None,
                "least_seconds": least_seconds(link, lanes=count, nbytes=nbytes, ranks=ranks),
            }
        )
    return cells


def least_seconds(link: Link, *, lanes: int, nbytes: int, ranks: int) -> float:
    """What distance and windows alone take, if everything else takes no time.

    A segment makes 2 (ranks - 1) hops, each half a round trip. Each lane carries its share of what a rank sends, a
    window at a time; the next one leaves when the one before is acknowledged, the last one has only to arrive. Frames
    have headers, so what would fill a window exactly needs one more. A shared line, if there is one, carries all of it.
    """
    carried = 2 * (ranks - 1) / ranks * nbytes
    windows = math.floor(carried / lanes / link.window_bytes) + 1
    hops = (ranks - 1) * link.round_trip_seconds
    line = carried / link.bytes_per_second if link.bytes_per_second else 0.0
    return max(hops, (windows - 0.5) * link.round_trip_seconds, line)


def judge(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Is the bar reached? One for something that was not measured is left out."""
    return [
        {
            "bar": f"{BAR_MS} ms, {BAR_LANES} lanes: at least {BAR_RATIO:g}x one lane",
            "found": f"{cell['over_fewest'][1]:.1f}x, window {cell['window_bytes'] / 2**20:g} MiB",
            "met": cell["over_fewest"][1] >= BAR_RATIO,
        }
        for cell in cells
        if (cell["round_trip_ms"], cell["lanes"]) == (BAR_MS, BAR_LANES)
    ]


COLUMNS = (
    *("round trip", "window", "lanes", "time", "quartiles", "at least"),
    *("MB/s", "over one lane", "quartiles", "over gloo"),
)


def fields(cell: Cell) -> list[str]:
    low, high = cell["seconds_quartiles"]
    return [
        f"{cell['round_trip_ms']} ms",
        f"{cell['window_bytes'] / 2**20:g} MiB",
        GLOO if cell["contestant"] == GLOO else str(cell["lanes"]),
        f"{cell['seconds']:.3f} s",
        f"{low:.3f} - {high:.3f}",
        f"{cell['least_seconds']:.3f} s",
        f"{cell['bytes_per_second'] / 1e6:.1f}",
        f"{cell['over_fewest'][1]:.2f}x",
        f"{cell['over_fewest'][0]:.2f} - {cell['over_fewest'][2]:.2f}",
        f"{cell['over_gloo'][1]:.2f}x" if cell["over_gloo"] else "-",
    ]


def markdown(report: dict[str, Any]) -> str:
    """The figures as the documentation shows them."""
    rows = [f"| {' | '.join(fields(cell))} |" for cell in report["cells"]]
    alignment = "| --: | --: | --: | --: | --- | --: | --: | --: | --- | --: |"
    bars = [f"\n{'Met' if bar['met'] else 'Missed'}: {bar['bar']}; {bar['found']}." for bar in report["bars"]]
    return "\n".join([f"| {' | '.join(COLUMNS)} |", alignment, *rows, *bars])
