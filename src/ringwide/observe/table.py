"""The rows of a check as text, in the columns of nccl-tests."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from ringwide.observe.check import Row

COLUMNS = "{:>11} {:>11} {:>9} {:>5} {:>9} {:>11} {:>8} {:>8} {:>6}"


def header() -> str:
    names = COLUMNS.format("size", "count", "dtype", "op", "algorithm", "time", "algbw", "busbw", "wrong")
    units = COLUMNS.format("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")
    return f"#{names[1:]}\n#{units[1:].rstrip()}"


def line(row: Row) -> str:
    return COLUMNS.format(
        row.nbytes,
        row.count,
        row.dtype,
        row.op,
        row.algorithm,
        f"{row.seconds * 1e6:.1f}",
        f"{row.algbw / 1e9:.3f}",
        f"{row.busbw / 1e9:.3f}",
        row.wrong,
    )


def verdict(rank: int, size: int, rows: Sequence[Row]) -> str:
    wrong_here, wrong = sum(row.wrong_here for row in rows), sum(row.wrong for row in rows)
    found = "all right" if wrong == 0 else f"WRONG: {wrong} elements on all ranks, {wrong_here} on this one"
    return f"rank {rank} of {size}: {len(rows)} all-reduces checked, {found}"


def document(rank: int, size: int, rows: Sequence[Row]) -> str:
    """The same for machines: one JSON object."""
    wrong = sum(row.wrong for row in rows)
    return json.dumps({"rank": rank, "size": size, "wrong": wrong, "rows": [asdict(row) for row in rows]}, indent=2)
