"""Two results beside each other: what became slower, beyond noise."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from bench.compare import FASTER, NOISE, SLOWER, UNKNOWN, NoResult, compare, read_cells, run

ROOT = Path(__file__).parents[2]


def cell(seconds: float, over_gloo: float | None = None, *, name: str = "ringwide", width: float = 0.02) -> Any:
    over = {} if over_gloo is None else {"gloo": [over_gloo * (1 - width), over_gloo, over_gloo * (1 + width)]}
    quartiles = [seconds * (1 - width), seconds * (1 + width)]
    place = {"ranks": 4, "bytes": 2**20, "contestant": name, "algorithm": "ring" if seconds < 1 else "star"}
    return {**place, "rounds": 5, "seconds": seconds, "seconds_quartiles": quartiles, "over": over}


def written(path: Path, *cells: Any) -> Path:
    path.write_text(json.dumps({"rounds": 5, "cells": cells}))
    return path


def verdict(directory: Path, old: Any, new: Any) -> str:
    pair = [read_cells(written(directory / name, one)) for name, one in (("old", old), ("new", new))]
    (change,) = compare(*pair)
    return change.verdict


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (cell(1.0), cell(1.2), SLOWER),
        (cell(1.0), cell(0.8), FASTER),
        (cell(1.0), cell(1.04, width=0.001), NOISE),  # apart, but little
        (cell(1.0, width=0.2), cell(1.3, width=0.2), NOISE),  # much, but the quartiles overlap
        (cell(1.0, 3.0), cell(2.0, 3.0), NOISE),  # the machine is slow today: gloo as well
        (cell(1.0, 3.0), cell(1.0, 2.0), SLOWER),
        (cell(1.0, 2.0), cell(1.0, 3.0), FASTER),
        (cell(1.0, 2.0), cell(1.0), NOISE),  # without gloo in one of them, seconds are compared
        ({**cell(1.0), "rounds": 1}, cell(2.0), UNKNOWN),
    ],
)
def test_verdicts(tmp_path: Path, old: Any, new: Any, expected: str) -> None:
    assert verdict(tmp_path, old, new) == expected


def outcome(old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as ended:
        run(argparse.Namespace(old=old, new=new, beyond=0.05))
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_something_slower_ends_with_1_and_is_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = written(tmp_path / "old", cell(1.0, 3.0), cell(0.5, name="ringwide-tcp"))
    new = written(tmp_path / "new", cell(1.0, 2.0), cell(0.5, name="ringwide-tcp"))
    code, told, _ = outcome(old, new, capsys)
    assert code == 1
    assert (
        "| 1 MiB, ringwide, ranks 4 | gloo / ours | 3.00x [2.94 - 3.06] | 2.00x [1.96 - 2.04] | 0.67 | slower |" in told
    )
    assert "2 cells in both: 1 slower, 1 the same, within noise" in told


def test_nothing_slower_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = written(tmp_path / "new", cell(0.5))
    assert outcome(written(tmp_path / "old", cell(0.6)), new, capsys)[0] == 0


def test_a_peer_that_became_slower_is_no_business_of_ours(tmp_path: Path) -> None:
    old = read_cells(written(tmp_path / "old", cell(1.0), cell(1.0, 2.0, name="mpich")))
    new = read_cells(written(tmp_path / "new", cell(1.0), cell(3.0, 0.5, name="mpich")))
    assert [change.verdict for change in compare(old, new)] == [NOISE]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot be read: No such file"),
        ("no JSON", "is not JSON"),
        ("[1]", "has no cells"),
        ('{"cells": [1]}', "has no cells"),
        ('{"cells": []}', "no cell in common"),
        ('{"cells": [{"ranks": 4, "seconds": 1.0}]}', "no cell in common"),
    ],
)
def test_what_is_no_result_ends_with_2_and_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, reason: str
) -> None:
    old, bad = written(tmp_path / "old", cell(1.0)), tmp_path / "bad"
    if text is not None:
        bad.write_text(text)
    for pair in ((old, bad), (bad, old)):
        code, told, complaint = outcome(*pair, capsys)
        assert (code, told) == (2, "")
        assert complaint.startswith("bench: ")
        assert reason in complaint


@pytest.mark.parametrize("name", ["codecs", "protection"])
def test_other_results_of_ours_can_be_compared(name: str) -> None:
    cells = read_cells(ROOT / "bench" / "results" / f"{name}.json")
    assert {change.verdict for change in compare(cells, cells)} == {NOISE}


def test_different_benchmarks_have_nothing_in_common() -> None:
    cells = [read_cells(ROOT / "bench" / "results" / f"{name}.json") for name in ("codecs", "protection")]
    with pytest.raises(NoResult, match="no cell in common"):
        compare(*cells)
