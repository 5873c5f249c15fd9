"""The cost curves' figures: what ranks bring home becomes cells, and cells become tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench.compare import SLOWER, compare, identity
from bench.costs import summary
from bench.costs.command import sizes_for, wanted_of
from bench.costs.plot import plot
from bench.costs.tables import SECTIONS, markdown, table

MIB = 2**20


def paced(gloo: list[list[float]], ours: list[list[float]], nbytes: int = 16 * MIB) -> list[dict[str, Any]]:
    """What one rank brings home of one size: seconds, user, system, turn by turn."""
    return [{"bytes": nbytes, "algorithm": "ring", "turns": {"gloo": gloo, "ringwide": ours}}]


def live(blocks: Sequence[int], nbytes: int = 4096) -> list[dict[str, Any]]:
    return [
        {
            "bytes": nbytes,
            "algorithm": "star",
            "calls": 10,
            "cyclic": [0] * len(blocks),
            "live_bytes": [100 * count for count in blocks],
            "live_blocks": list(blocks),
            "peak_bytes": [2048, 4096, 2048],
        }
    ]


def test_a_turn_takes_as_long_as_its_slowest_rank() -> None:
    one = paced([[4.0, 0, 0], [4.0, 0, 0]], [[1.0, 0, 0], [3.0, 0, 0]])
    other = paced([[8.0, 0, 0], [2.0, 0, 0]], [[2.0, 0, 0], [1.0, 0, 0]])
    gloo, ours = summary.times([one, other])
    assert (gloo["seconds"], ours["seconds"], ours["ranks"]) == (6.0, 2.5, 2)
    assert ours["over_gloo"] == pytest.approx([1.333 + 0.667, 2.667, 3.333], abs=0.001)  # of 8 / 2 and 4 / 3


def test_processor_time_is_of_all_ranks_for_all_their_bytes() -> None:
    one = paced([[9.0, 1.0, 1.0]], [[9.0, 0.25, 0.5]], nbytes=500_000_000)
    other = paced([[9.0, 1.0, 3.0]], [[9.0, 0.75, 0.5]], nbytes=500_000_000)
    gloo, ours = summary.processor([one, other])
    assert (gloo["seconds"], gloo["user_seconds"], gloo["system_seconds"]) == (6.0, 2.0, 4.0)
    assert (ours["seconds"], ours["user_seconds"], ours["system_seconds"]) == (2.0, 1.0, 1.0)


def test_a_ring_has_formed_when_its_last_rank_has_joined() -> None:
    (cell,) = summary.joined([{"ringwide": [0.1, 0.5]}, {"ringwide": [0.3, 0.1]}], torch=False)
    assert cell == {
        "ranks": 2,
        "contestant": "ringwide",
        "torch": False,
        "seconds": pytest.approx(0.4),
        "seconds_quartiles": pytest.approx([0.35, 0.45]),
    }


def test_memory_is_told_after_the_first_call_and_after_the_last() -> None:
    ranks = [{"peak": [10, 30], "resident": [5, 20], "proportional": [5, 6 + rank]} for rank in range(3)]
    cell = summary.memory(ranks, library="gloo", nbytes=MIB)
    assert (cell["first_peak_bytes"], cell["peak_bytes"], cell["resident_bytes"]) == (10, 30, 20)
    assert (cell["proportional_bytes"], cell["proportional_bytes_quartiles"]) == (7, [6.5, 7.5])
    assert cell["calls"] == 2


@pytest.mark.parametrize(
    ("blocks", "more", "growing"),
    [
        ([50, 50, 50, 50, 50], 0.0, False),
        ([50, 60, 70, 70, 70], 0.0, False),  # it took some calls to get warm
        ([50, 50, 50, 80, 80], 1.5, False),  # something came once
        ([50, 50, 50, 80, 50], 0.0, False),  # and went
        ([50, 60, 70, 80, 90], 1.0, True),
        ([60, 50, 70, 80, 90], 1.0, True),  # since it is warm
    ],
)
def test_what_rises_at_every_step_grows(blocks: list[int], more: float, growing: bool) -> None:
    """Of the ranks, the one that gained most counts."""
    (cell,) = summary.allocations([live([50] * 5), live(blocks)])
    assert (cell["more_blocks_a_call"], cell["more_bytes_a_call"]) == (more, 100 * more)
    assert cell["grows"] is growing
    assert ("**grows**" in table({"cells": [{"curve": "allocations", **cell}]}, "allocations")) is growing


def whole_report() -> dict[str, Any]:
    turns = [[0.004, 0.001, 0.002]] * 3
    ranks = [[paced(turns, turns)] * count for count in (2, 4)]
    found = {"peak": [MIB], "resident": [MIB], "proportional": [MIB]}
    joins = [({"gloo": [0.2], "ringwide": [0.1]}, True), ({"ringwide": [0.1]}, False)]
    curves: dict[str, list[dict[str, Any]]] = {
        "time": [cell for cells in ranks for cell in summary.times(cells)],
        "processor": [cell for cells in ranks for cell in summary.processor(cells)],
        "memory": [
            summary.memory([found] * 4, library=library, nbytes=nbytes)
            for nbytes in (MIB, 4 * MIB)
            for library in ("gloo", "ringwide")
        ],
        "allocations": list(summary.allocations([live([50] * 5)] * 2)),
        "join": [
            cell for ranks in (2, 4) for taken, torch in joins for cell in summary.joined([taken] * ranks, torch=torch)
        ],
    }
    return {"cells": [{"curve": name, **cell} for name, cells in curves.items() for cell in cells]}


def test_a_curve_that_became_steeper_is_found() -> None:
    """Two results can be compared: nothing in a cell but what it is about identifies it."""
    old, new = ({identity(cell): cell for cell in whole_report()["cells"]} for _ in range(2))
    for cell in new.values():
        if (cell["curve"], cell.get("torch")) == ("join", False):
            cell.update(seconds=0.3, seconds_quartiles=[0.29, 0.31])
    assert len(old) == len(whole_report()["cells"])
    slower = [change.place for change in compare(old, new) if change.verdict == SLOWER]
    assert len(slower) == 2
    assert all("join" in place for place in slower)


def test_every_curve_has_its_table() -> None:
    text = markdown(whole_report())
    assert "| 4 | 16 MiB | ring | 4.00 ms | 4.00 ms | 4.00 ms - 4.00 ms | 1.00x | 1.00 - 1.00 |" in text
    assert "| 2 | 16 MiB | 0.18 [0.18 - 0.18] | 0.06 + 0.12 | 0.18 [0.18 - 0.18] | 0.06 + 0.12 | 1.00x |" in text
    assert "| 4 | 4 MiB | ringwide | 1.0 | 1.0 | 1.0 | 1.0 | 0.25 |" in text
    assert "| 2 | 4 KiB | star | 20 | +0.000 | +0.00 | 0.00 | 2.0 KiB | steady |" in text
    assert "| 4 | 100.00 ms | 100.00 ms - 100.00 ms | 100.00 ms |" in text
    assert text.count("| --") >= len(SECTIONS)


def test_the_picture_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    for name in ("one.svg", "other.svg"):
        plot(whole_report(), tmp_path / name)
    assert (tmp_path / "one.svg").read_text() == (tmp_path / "other.svg").read_text()
    assert "Processor time" in (tmp_path / "one.svg").read_text()


def test_only_what_is_asked_for_is_measured() -> None:
    assert wanted_of("join,time") == ["join", "time"]
    assert wanted_of(None) == list(SECTIONS)
    with pytest.raises(SystemExit, match="--only speed: there are time, processor"):
        wanted_of("speed")
    both = ["time", "processor"]
    assert sizes_for(4, "4KiB,16MiB", both) == [4096, 16 * MIB, 64 * MIB]
    assert sizes_for(3, "4KiB,16MiB", both) == [4096, 16 * MIB]
    assert sizes_for(4, "4KiB", ["join"]) == []
