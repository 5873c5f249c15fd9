import json
import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from experiment.report.made_runs import evaluation_line, made_result, made_results, made_steps, step_line, write_run
from ringwide.experiment.report.metrics import MAX_BINS, MAX_INTERVALS, Metrics, read_lines, read_metrics
from ringwide.experiment.report.run_files import Run, read


def metrics_of(lines: Iterable[Mapping[str, Any]]) -> Metrics:
    return read_lines(json.dumps(line) for line in lines)


def test_few_steps_are_kept_as_they_are() -> None:
    metrics = metrics_of([step_line(node, step, loss=node + step) for node in (0, 1) for step in (1, 2, 3)])
    assert [(point.step, point.low, point.mean, point.high) for point in metrics.points] == [
        (1, 1, 1.5, 2),
        (2, 2, 2.5, 3),
        (3, 3, 3.5, 4),
    ]


@pytest.mark.parametrize("shuffled", [False, True])
def test_many_steps_become_plain_means(shuffled: bool) -> None:
    lines = list(made_steps(nodes=2, steps=5000))
    if shuffled:
        random.Random(1).shuffle(lines)
    metrics = metrics_of(lines)
    steps = [line for line in lines if "node" in line]
    assert MAX_BINS / 2 <= len(metrics.points) <= MAX_BINS

    inside_of: dict[int, list[dict[str, Any]]] = {}
    for line in steps:
        inside_of.setdefault(line["step"] // 16, []).append(line)  # the first power of two with which they fit
    for index, point in enumerate(metrics.points):
        inside = inside_of[index]
        means = [fmean(line["loss"] for line in inside if line["node"] == node) for node in (0, 1)]
        assert point.step == pytest.approx(fmean(line["step"] for line in inside))
        assert point.seconds == pytest.approx(fmean(line["seconds"] for line in inside))
        assert point.mean == pytest.approx(fmean(line["loss"] for line in inside))
        assert (point.low, point.high) == pytest.approx((min(means), max(means)))


def test_means_are_over_samples() -> None:
    metrics = metrics_of([step_line(0, 1, loss=1.0, samples=3), step_line(1, 1, loss=2.0, samples=1)])
    assert metrics.points[0].mean == pytest.approx(1.25)


def test_an_empty_share_is_no_bad_loss() -> None:
    metrics = metrics_of([step_line(0, 1, loss=1.0), step_line(1, 1, loss=math.nan, samples=0)])
    assert metrics.first_step_not_finite is None
    assert metrics.points[0].mean == 1.0


def test_losses_that_are_not_finite_are_told_and_left_out() -> None:
    losses = [2.0, None, math.inf, math.nan]
    metrics = metrics_of([step_line(0, 7 - step, loss=loss) for step, loss in enumerate(losses)])
    assert metrics.first_step_not_finite == 4
    assert [math.isfinite(point.mean) for point in metrics.points] == [False, False, False, True]


def test_the_pace_is_that_of_all_nodes() -> None:
    metrics = metrics_of(made_steps(nodes=3, steps=2000))  # 100 steps a second and node, for 20 seconds
    assert 10 < len(metrics.pace) <= MAX_INTERVALS
    assert [piece.steps_per_second for piece in metrics.pace] == pytest.approx([300] * len(metrics.pace), rel=0.06)
    assert metrics.pace[-1].end <= 20


def test_a_short_training_has_a_pace_too() -> None:
    assert 4 <= len(metrics_of(made_steps(nodes=4, steps=44)).pace) <= 16


def test_a_pause_is_seen() -> None:
    lines = [step_line(0, step, seconds=step / 100 + (10 if step > 1000 else 0)) for step in range(1, 2001)]
    assert min(piece.steps_per_second for piece in metrics_of(lines).pace) == 0


@pytest.mark.parametrize("seconds", [1e-6, 1e9])
def test_one_step_has_no_endless_axis(seconds: float) -> None:
    assert len(metrics_of([step_line(0, 1, seconds=seconds)]).pace) <= 1


def test_evaluations_are_in_order() -> None:
    metrics = metrics_of([evaluation_line(20, accuracy=None), evaluation_line(10, loss=math.nan)])
    assert [(found.step, found.accuracy) for found in metrics.evaluations] == [(10, 0.875), (20, None)]


BROKEN = [
    '{"node": 0, "st',
    "",
    "null",
    "[1]",
    "7",
    '{"node": 0}',
    json.dumps(step_line(0, 5, seconds=math.inf)),
    json.dumps(step_line(0, 5, seconds=math.nan)),
    json.dumps(step_line(0, 5, network_seconds="x")),
    json.dumps(step_line(0, 5, loss=10**400)).replace("1" + "0" * 400, "1" + "0" * 5000),
    "[" * 100_000,
    "\ufffd",
]


@pytest.mark.parametrize("broken", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_line_counts_for_nothing(broken: str) -> None:
    good = [json.dumps(step_line(0, step)) for step in (1, 2)]
    clean, metrics = read_lines(good), read_lines([good[0], broken, good[1]])
    assert metrics.unreadable_lines == 1
    assert (metrics.points, metrics.heard, metrics.pace) == (clean.points, clean.heard, clean.pace)


def test_a_run_killed_in_the_middle_of_a_line(tmp_path: Path) -> None:
    write_run(tmp_path, lines=[step_line(0, 1), step_line(0, 2)])
    with (tmp_path / "metrics.jsonl").open("ab") as out:
        out.write(b'{"node": 0, "step": 3, "lo\xff\x00')
    metrics = read_metrics(tmp_path)
    assert (len(metrics.points), metrics.unreadable_lines) == (2, 1)


def test_no_file_is_no_steps(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == Metrics()


def test_nodes_without_result_are_made_up_from_their_steps(tmp_path: Path) -> None:
    lines = [step_line(2, step, samples=40 if step < 10 else 3) for step in range(1, 11)]
    write_run(tmp_path, made_results({0: made_result(0)}, status="failed"), lines)
    run = read(tmp_path)
    assert isinstance(run, Run)
    silent, heard = read_metrics(tmp_path).nodes_without_result(run)
    assert (silent.rank, silent.ended, silent.figures) == (1, False, {})
    assert (heard.rank, heard.ended) == (2, False)
    assert heard.figures["steps"] == 10
    assert heard.figures["batches"] == 9 * 3 + 1  # 40 samples are three batches of up to 16
    assert heard.figures["samples"] == 9 * 40 + 3
    assert heard.figures["network_seconds"] == pytest.approx(0.04)
    assert heard.figures["hidden_share"] == pytest.approx(0.25)
