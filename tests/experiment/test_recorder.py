import json
import math
import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from experiment.told import config, plan, progress, result, step, steps
from ringwide.errors import ConfigError, RingwideError
from ringwide.experiment.recorder import (
    FLUSH_EVERY_SECONDS,
    ROOM_BYTES,
    UNFINISHED,
    Recorder,
    Status,
    directory_for,
    latest_run,
    new_directory,
)
from ringwide.experiment.run_state import Board
from ringwide.training.progress import Evaluation

NOW = datetime(2024, 2, 3, 4, 5, 6)


@pytest.fixture(autouse=True)
def reported(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """For which directories a report was asked."""
    directories: list[Path] = []

    def write_report(directory: Path) -> Path:
        directories.append(directory)
        return directory / "report.html"

    monkeypatch.setattr("ringwide.experiment.report.write_report", write_report)
    return directories


def recorder(directory: Path, clock: Callable[[], float] = lambda: 0.0) -> Recorder:
    return Recorder(directory, Board(config()), label="lanes=2", started=NOW, clock=clock)


def results_in(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "results.json").read_text())
    return document


def metrics_in(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_its_results_and_a_report(tmp_path: Path, reported: list[Path]) -> None:
    now = 100.0
    recording = recorder(tmp_path, lambda: now)
    recording.hear(1, plan())
    recording.hear(1, result(loss=0.5))
    recording.hear(0, result())
    now = 107.5
    assert recording.finish("complete") == tmp_path / "report.html"
    assert reported == [tmp_path]
    found = results_in(tmp_path)
    assert (found["format"], found["name"], found["label"]) == (1, "t", "lanes=2")
    assert (found["status"], found["reason"], found["seconds"]) == ("complete", "", 7.5)
    assert datetime.fromisoformat(found["started"]) == NOW.astimezone()
    assert found["config"] == config().model_dump(mode="json")
    assert found["plan"]["steps_per_epoch"] == 5
    assert {"ringwide", "python", "torch", "numpy"} <= found["versions"].keys()
    assert found["machine"].keys() == {"cpu", "cores", "memory_bytes", "system"}
    assert [(node["rank"], node["loss"]) for node in found["nodes"]] == [(0, 0.25), (1, 0.5)]
    assert found["totals"]["batches"] == 20
    assert found["spread"]["loss"] == {"min": 0.25, "mean": 0.375, "max": 0.5}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "results.json"]


def test_a_run_that_is_killed_leaves_results_that_say_so(tmp_path: Path) -> None:
    recording = recorder(tmp_path)
    found = results_in(tmp_path)
    assert (found["status"], found["reason"]) == ("failed", UNFINISHED)
    assert (found["nodes"], found["plan"], found["totals"]) == ([], None, {})
    recording.close()


def test_every_step_and_each_evaluation_is_one_line(tmp_path: Path) -> None:
    recording = recorder(tmp_path)
    recording.hear(0, progress(step(1, loss=0.5), step(2, loss=0.25)))
    recording.hear(1, progress(step(1, samples=8)))
    for rank in range(2):
        recording.hear(rank, Evaluation(step=2, seconds=1.0, loss=0.125, accuracy=None))
    recording.finish("stopped", "SIGINT")
    first, *_, evaluation = metrics_in(tmp_path)
    assert first == {
        "node": 0,
        "step": 1,
        "epoch": 0,
        "seconds": 0.5,
        "loss": 0.5,
        "samples": 16,
        "learning_rate": 0.1,
        "network_seconds": 0.125,
        "hidden_seconds": 0.0,
    }
    assert [line["node"] for line in metrics_in(tmp_path)[:-1]] == [0, 0, 1]
    assert evaluation == {"evaluation": True, "step": 2, "seconds": 1.0, "loss": 0.125, "accuracy": None}
    assert (results_in(tmp_path)["status"], results_in(tmp_path)["reason"]) == ("stopped", "SIGINT")


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_null(tmp_path: Path, loss: float) -> None:
    recording = recorder(tmp_path)
    recording.hear(0, progress(step(1, loss=loss), step(2, loss=0.5)))
    recording.hear(0, Evaluation(step=2, seconds=1.0, loss=loss, accuracy=None))
    recording.hear(0, result(loss=loss))
    recording.finish("complete")
    recorded = (tmp_path / "metrics.jsonl").read_text() + (tmp_path / "results.json").read_text()
    assert not re.search(r"\b(nan|inf|infinity)\b", recorded, re.IGNORECASE)
    assert [line["loss"] for line in metrics_in(tmp_path)] == [None, 0.5, None]
    assert results_in(tmp_path)["nodes"][0]["loss"] is None
    assert results_in(tmp_path)["totals"]["loss"] is None


def test_metrics_are_on_disk_soon_after_they_were_heard(tmp_path: Path) -> None:
    now = 0.0
    recording = recorder(tmp_path, lambda: now)
    recording.hear(0, progress(step(1)))
    assert metrics_in(tmp_path) == []
    now = FLUSH_EVERY_SECONDS
    recording.hear(0, progress(step(2)))
    assert [line["step"] for line in metrics_in(tmp_path)] == [1, 2]
    recording.close()


def test_results_that_cannot_be_written_leave_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half(path: Path, text: str, **_: str) -> int:
        path.write_bytes(text.encode()[: len(text) // 2])
        raise OSError(28, "No space left on device")

    recording = recorder(tmp_path)
    before = results_in(tmp_path)
    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(RingwideError, match=r"results\.json: cannot be written: No space left on device"):
        recording.finish("complete")
    assert results_in(tmp_path) == before


@pytest.mark.parametrize(("status", "reason"), [("complete", ""), ("stopped", "SIGINT")])
def test_metrics_that_cannot_be_written_make_a_failure_with_results_and_a_report(
    tmp_path: Path, reported: list[Path], status: Status, reason: str
) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    recording = recorder(tmp_path)
    recording.hear(0, progress(step(1)))
    lost = r"metrics\.jsonl: cannot be written: No space left on device"
    with pytest.raises(RingwideError, match=lost):
        recording.finish(status, reason)
    assert results_in(tmp_path)["status"] == "failed"
    assert re.search(lost, results_in(tmp_path)["reason"])
    assert reported == [tmp_path]
    recording.close()  # which says nothing twice


def test_a_failure_that_is_known_is_not_told_again(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    recording = recorder(tmp_path)
    recording.hear(0, progress(step(1)))
    assert recording.finish("failed", "out of luck") == tmp_path / "report.html"
    assert results_in(tmp_path)["reason"] == "out of luck"


def test_a_full_disk_gets_room_for_results_from_the_last_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = recorder(tmp_path)
    recording.hear(0, steps(range(1, 5001)))
    recording._metrics.flush()
    before = (tmp_path / "metrics.jsonl").stat().st_size

    def close() -> None:
        raise RingwideError("full")

    with monkeypatch.context() as patched:
        patched.setattr(recording, "close", close)
        recording.finish("failed", "full")
    recording.close()
    assert 0 <= before - ROOM_BYTES - (tmp_path / "metrics.jsonl").stat().st_size + 200 < 400
    left = [line["step"] for line in metrics_in(tmp_path)]
    assert left == list(range(1, len(left) + 1))


def test_a_directory_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RingwideError, match=r"gone/metrics\.jsonl: cannot be written: No such file or directory"):
        recorder(tmp_path / "gone")


def test_each_run_has_a_directory_of_its_own(tmp_path: Path) -> None:
    settings = config(name="a, b=c", report={"directory": str(tmp_path / "deep" / "runs")})
    made = [new_directory(settings, NOW) for _ in range(3)]
    assert [path.name for path in made] == [f"a, b=c-20240203-040506{number}" for number in ("", "-2", "-3")]
    assert directory_for(settings, NOW).name == "a, b=c-20240203-040506-4"
    assert not directory_for(settings, NOW).exists()


def test_a_place_where_nothing_can_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match=r"report\.directory: '.*runs': .* cannot be created: Not a directory"):
        new_directory(config(report={"directory": str(tmp_path / "runs")}), NOW)


# -- the last run with a checkpoint


def checkpoint(run: Path, name: str, at: float) -> None:
    run.mkdir(parents=True, exist_ok=True)
    (run / name).touch()
    os.utime(run / name, (at, at))


def test_the_latest_run_is_that_of_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    ours = config(report={"directory": str(tmp_path)})
    assert latest_run(ours) is None
    checkpoint(tmp_path / "t-20200101-000000" / "checkpoints", "step-000000009.pt", 200.0)
    checkpoint(tmp_path / "t-20200102-000000" / "checkpoints", "step-000000003.pt", 300.0)
    checkpoint(tmp_path / "t-20200103-000000" / "checkpoints", "step-000000003.rank-0.pt", 400.0)  # incomplete
    checkpoint(tmp_path / "t-20200104-000000" / "checkpoints", "step-000000003.unfinished", 500.0)
    checkpoint(tmp_path / "t-other-20200105-000000" / "checkpoints", "step-000000003.pt", 600.0)  # of another name
    (tmp_path / "t-20200106-000000").mkdir()
    assert latest_run(ours) == tmp_path / "t-20200102-000000"
    assert latest_run(ours, since=300.0) is None
    assert latest_run(ours, since=299.0) == tmp_path / "t-20200102-000000"


def test_a_directory_of_its_own_for_checkpoints_is_where_the_latest_is(tmp_path: Path) -> None:
    ours = config(checkpoint={"directory": str(tmp_path / "kept"), "every_steps": 1})
    assert latest_run(ours) is None
    checkpoint(tmp_path / "kept", "step-000000003.pt", 300.0)
    assert latest_run(ours) == tmp_path / "kept"
