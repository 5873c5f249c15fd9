from pathlib import Path

import pytest

from experiment.report.made_runs import codec_variants, write_run, write_sweep
from ringwide.__main__ import main


def test_one_run_gets_its_report_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_run(tmp_path, lines=[])
    (directory / "report.html").write_text("old")
    assert main(["report", str(directory)]) == 0
    assert capsys.readouterr().out == f"report: {directory}/report.html\n"
    assert "<!DOCTYPE html>" in (directory / "report.html").read_text()


def test_several_are_compared_beside_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / name, lines=[])) for name in ("six-1", "six-2")]
    assert main(["report", *runs]) == 0
    head, *rows, _, last = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["run", "batches", "batches/s"]
    assert [row.split()[:3] for row in rows] == [["six-1", "3,000", "300"], ["six-2", "3,000", "300"]]
    (page,) = tmp_path.glob("comparison-*.html")
    assert last == f"report: {page}"
    assert page.with_suffix(".md").exists()


def test_a_sweep_prints_its_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_sweep(tmp_path, codec_variants("none", "lz4"))
    assert main(["report", str(directory), "--out", str(tmp_path / "x.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["1", "none", "2,700"], ["2", "lz4", "2,400"]]
    assert lines[-1] == f"report: {tmp_path}/x.html"
    assert not (directory / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["gone"], "gone/results.json: the results cannot be read"),
        (["gone", "--out", "v1.5"], "--out v1.5: should end in .html"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"ringwide: error: {problem}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
