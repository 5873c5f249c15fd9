import json
from pathlib import Path
from typing import Any

import pytest

from experiment.report.made_runs import codec_variants, made_config, made_result, made_results, write_run, write_sweep
from ringwide.experiment.report import tables, writing
from ringwide.experiment.report.metrics import read_metrics
from ringwide.experiment.report.run_files import Run, Sweep, read
from ringwide.experiment.report.tables import Table, markdown, text

REFERENCE = {"name": "generation 6", "batches": 1500, "batches_per_second": 0, "memory": "135MB", "loss": 2.04}


def run_of(directory: Path, *results: Any, **changes: Any) -> Run:
    write_run(directory, made_results(*results, **changes), [])
    found = read(directory)
    assert isinstance(found, Run)
    return writing.with_missing_nodes(found, read_metrics(directory))


def column(table: Table, head: str) -> list[str]:
    return [row[table.heads.index(head)] for row in table.rows]


def test_every_node_has_its_figures(tmp_path: Path) -> None:
    table = tables.nodes(run_of(tmp_path))
    assert dict(zip(table.heads, table.rows[1], strict=True)) == {
        "node": "1",
        "batches": "1,000",
        "epochs": "31.2",
        "loss": "0.5100",
        "test accuracy": "87.5 %",
        "batches/s": "100",
        "network time": "5.00 s",
        "of it hidden": "20.0 %",
        "sent": "20.0 MB",
        "received": "20.0 MB",
        "throughput": "2.00 MB/s",
        "memory": "90.0 MB",
        "peak resident": "210 MB",
    }


def test_codecs_are_told_where_there_are_any(tmp_path: Path) -> None:
    run = run_of(tmp_path, {0: made_result(0, codec_seconds=0.5, compression_ratio=1.25)}, config=made_config(nodes=1))
    assert column(tables.nodes(run), "codec time") == ["500 ms"]
    assert column(tables.nodes(run), "compression") == ["1.25×"]
    assert {"codec time", "compression"} <= set(column(tables.spread(run), ""))


def test_a_lost_node_is_marked_and_its_figures_are_dashes(tmp_path: Path) -> None:
    table = tables.nodes(run_of(tmp_path, {0: made_result(0), 2: made_result(2)}, status="failed"))
    assert column(table, "node") == ["0", "1 *", "2"]
    assert set(table.rows[1][1:]) == {"–"}
    assert "left no result" in table.note


def test_the_spread_over_nodes(tmp_path: Path) -> None:
    rows = {row[0]: row[1:] for row in tables.spread(run_of(tmp_path)).rows}
    assert rows["batches"] == ("3,000", "1,000", "1,000", "1,000")
    assert rows["network time"] == ("–", "4.00 s", "5.00 s", "6.00 s")
    assert rows["memory"] == ("270 MB", "90.0 MB", "90.0 MB", "90.0 MB")
    assert rows["peak resident"][0] == "–"  # shared pages would be counted three times
    assert "codec time" not in rows


def test_a_node_without_samples_does_not_spoil_the_spread(tmp_path: Path) -> None:
    run = run_of(tmp_path, {0: made_result(0), 1: made_result(1, test_loss=float("nan"))}, config=made_config(nodes=2))
    assert {row[0]: row[1:] for row in tables.spread(run).rows}["test loss"] == ("–", "0.5500", "0.5500", "0.5500")


def test_references_stand_beside_with_ratios(tmp_path: Path) -> None:
    run = run_of(tmp_path, config=made_config(report={"beside": [REFERENCE]}))
    table = tables.beside([("this run", run)])
    assert table is not None
    assert column(table, "") == ["this run", "generation 6", "ratio"]
    assert column(table, "batches") == ["3,000", "1,500", "2.00×"]
    assert column(table, "batches/s") == ["300", "0", "–"]
    assert column(table, "memory") == ["270 MB", "135 MB", "2.00×"]
    assert column(table, "network time") == ["5.00 s", "–", "–"]
    assert column(table, "loss") == ["0.5100", "2.040", "0.250×"]


def test_without_references_nothing_is_beside(tmp_path: Path) -> None:
    assert tables.beside([("this run", run_of(tmp_path))]) is None


def test_a_sweep_is_compared_by_its_keys(tmp_path: Path) -> None:
    sweep = read(write_sweep(tmp_path, codec_variants("none", "lz4")))
    assert isinstance(sweep, Sweep)
    table = tables.comparison(writing.all_runs([sweep]))
    assert table.heads[:3] == ("#", "ring.codec", "batches")
    assert column(table, "ring.codec") == ["none", "lz4"]
    assert column(table, "batches") == ["2,700", "2,400"]
    assert column(table, "compression") == ["1.00×", "1.50×"]
    assert tables.differences(writing.all_runs([sweep])) is None


def test_many_differences_get_a_table_of_their_own(tmp_path: Path) -> None:
    ring = {"lanes": 2, "segment_bytes": "2MiB", "buffer_bytes": "8MiB", "linger_seconds": 0}
    one, other = (
        run_of(tmp_path / "a"),
        run_of(tmp_path / "b", config=made_config(name="other", ring=ring), name="other"),
    )
    named = [("one", one), ("other", other)]
    assert tables.comparison(named).heads[:2] == ("run", "batches")
    table = tables.differences(named)
    assert table is not None
    assert table.heads == ("run", "ring.segment_bytes", "ring.buffer_bytes", "ring.lanes", "ring.linger_seconds")
    assert table.rows[1] == ("other", "2 MiB", "8 MiB", "2", "0.0")


def test_the_plan_and_the_configuration_are_readable(tmp_path: Path) -> None:
    run = run_of(tmp_path, config=made_config(report={"notes": "secret", "beside": [REFERENCE]}))
    plan = dict(tables.plan(run).rows)
    assert (plan["gradient"], plan["last step"], plan["overlapped"], plan["seconds"]) == (
        "5.16 kB",
        "–",
        "no",
        "30.0 s",
    )
    settings = dict(tables.configuration(run).rows)
    assert (settings["ring.segment_bytes"], settings["training.betas"]) == ("1 MiB", "[0.9, 0.999]")
    assert settings["checkpoint.every_steps"] == "–"
    assert "secret" not in json.dumps(settings)


TABLE = Table("A", ("name", "size"), (("x|y <b>", "1"), ("two\nlines", "1,000")), links=("a%20b/report.html",))


def test_the_same_cells_as_text_and_markdown() -> None:
    assert text(Table("A", ("name", "size"), (("x", "1"), ("longer", "1,000")))) == (
        "name     size\nx           1\nlonger  1,000"
    )
    assert markdown(TABLE).splitlines() == [
        "## A",
        "",
        "| name | size |",
        "| --- | --: |",
        "| [x\\|y \\<b\\>](<a%20b/report.html>) | 1 |",
        "| two lines | 1,000 |",
    ]


@pytest.mark.parametrize("words", ["[x](javascript:1)", "`a`", "**b**", "<script>", "a\\"])
def test_markdown_keeps_words_words(words: str) -> None:
    cell = markdown(Table("A", ("h",), ((words,),))).splitlines()[-1]
    assert cell.replace("\\", "") == f"| {words} |".replace("\\", "")
    assert all(cell[place - 1] == "\\" for place, mark in enumerate(cell) if mark in "[]<>`*")
