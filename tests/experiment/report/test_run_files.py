import json
import math
from pathlib import Path
from typing import Any

import pytest

from experiment.report.made_runs import codec_variants, made_result, made_results, write_run, write_sweep
from ringwide.errors import ConfigError
from ringwide.experiment.report.run_files import Run, Sweep, number, read


def written(directory: Path, document: Any) -> Path:
    (directory / "results.json").write_text(document if isinstance(document, str) else json.dumps(document))
    return directory


def read_run(directory: Path) -> Run:
    found = read(directory)
    assert isinstance(found, Run)
    return found


def read_sweep(directory: Path) -> Sweep:
    found = read(directory)
    assert isinstance(found, Sweep)
    return found


def test_a_run_is_read_whole(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path))
    assert (run.name, run.status, run.size, run.missing) == ("six", "complete", 3, ())
    assert [node.figures["loss"] for node in run.nodes] == [0.5, 0.51, 0.52]
    assert run.totals["batches"] == 3000
    assert run.setting("training.batch_size") == run.batch_size == 16
    assert run.setting("training.no_such.key") is None


def test_ranks_without_a_result_are_missing(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, made_results({1: made_result(1)}, status="failed")))
    assert run.missing == (0, 2)


def test_the_least_that_is_a_run(tmp_path: Path) -> None:
    """As an older version may have left it, or a launcher that was killed at once."""
    run = read_run(written(tmp_path, {"format": 1, "name": "x", "plan": None, "config": {"training": 3}}))
    assert (run.nodes, run.seconds, dict(run.plan), run.batch_size) == ((), None, {}, 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (0.5, 0.5),
        (None, None),
        (True, None),
        ("x", None),
        ([1], None),
        (10**400, None),
        ("-Infinity", -math.inf),
    ],
)
def test_a_figure_is_a_number_or_none(value: object, expected: float | None) -> None:
    assert number(value) == expected


def test_nan_survives_in_every_spelling(tmp_path: Path) -> None:
    run = read_run(written(tmp_path, '{"format": 1, "totals": {"loss": NaN, "test_loss": "nan", "x": Infinity}}'))
    assert math.isnan(run.totals["loss"] or 0)
    assert math.isnan(run.totals["test_loss"] or 0)
    assert run.totals["x"] == math.inf


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ('{"format": 1, "na', "not JSON: Unterminated string"),
        ("[" * 100_000, "not JSON: "),
        ([], "there is no 'format'"),
        ({"name": "x"}, "there is no 'format'"),
        ({"format": 2}, "format 2: this version of ringwide reads format 1"),
        ({"format": 1, "nodes": {}}, "nodes: {}: should be a list"),
        ({"format": 1, "nodes": [{"loss": 1}]}, "nodes: {'loss': 1}: should be an object with a rank"),
        ({"format": 1, "name": 7}, "name: 7: should be a text"),
        ({"format": 1, "config": "x"}, "config: 'x': should be an object"),
        ({"format": 1, "sweep": {}, "runs": ["../x"]}, "runs: '../x': should be the name of a directory"),
        ({"format": 1, "sweep": {}, "runs": [3]}, "runs: 3: should be the name of a directory"),
    ],
)
def test_a_broken_file_is_named(document: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read(written(tmp_path, document))
    assert str(error.value).startswith(f"{tmp_path}/results.json: ")
    assert problem in str(error.value)


def test_a_directory_without_results_is_told_with_what_would_be_right(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"results.json: the results cannot be read: No such file .* runs/NAME-TIME"):
        read(tmp_path)


def test_a_sweep_has_its_runs_in_order(tmp_path: Path) -> None:
    sweep = read_sweep(write_sweep(tmp_path, codec_variants("none", "zlib", "lz4")))
    assert [run.label for run in sweep.runs] == ["codec=none", "codec=zlib", "codec=lz4"]
    assert sweep.planned == 3


def test_variants_that_never_ran_are_left_out(tmp_path: Path) -> None:
    variants = codec_variants("none", "zlib")
    write_sweep(tmp_path, variants, status="stopped", sweep={"ring.codec": ["none", "zlib"], "ring.lanes": [1, 2]})
    (tmp_path / "02-codec=zlib" / "results.json").unlink()
    sweep = read_sweep(tmp_path)
    assert (len(sweep.runs), sweep.planned) == (1, 4)
