import asyncio
import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiment import told
from experiment.in_process import TRAINING, experiment, worker_at
from ringwide.errors import PeerLost, RingwideError
from ringwide.experiment import worker
from ringwide.experiment.node_messages import Message, decode
from ringwide.experiment.stop_signals import NodeStop
from ringwide.experiment.worker import run_alone, run_and_tell
from ringwide.training.progress import Result, TrainingPlan


def runs(directory: Path) -> list[Path]:
    return sorted((directory / "runs").iterdir())


def found(run: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((run / "results.json").read_text())
    return document


def pretend(monkeypatch: pytest.MonkeyPatch, outcome: dict[int, Result] | BaseException) -> None:
    """Training that makes a step and then ends so."""

    async def run_worker(one: object, config: object, directory: object, tell: Any) -> dict[int, Result]:
        tell(told.plan())
        tell(told.steps([1, 2]))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(worker, "run_worker", run_worker)


async def test_every_variant_leaves_a_run_with_all_nodes(tmp_path: Path) -> None:
    variants = experiment(tmp_path, nodes=2, sweep={"training.learning_rate": [0.1, 0.2]}, logging="verbose")
    outputs = [io.StringIO(), io.StringIO()]
    codes = await asyncio.gather(*(run_alone(worker_at(tmp_path, rank), variants, outputs[rank]) for rank in range(2)))
    assert codes == [0, 0]
    assert len(runs(tmp_path)) == 4  # of each rank, here in one place
    for run in runs(tmp_path):
        document = found(run)
        assert (document["status"], [node["rank"] for node in document["nodes"]]) == ("complete", [0, 1])
        assert len((run / "metrics.jsonl").read_text().splitlines()) == 3 + 1  # its own steps, and the evaluation
        rate = document["config"]["training"]["learning_rate"]
        assert yaml.safe_load((run / "experiment.yaml").read_text())["training"]["learning_rate"] == rate
    assert (
        sorted(log.name for run in runs(tmp_path) for log in run.glob("*.log"))
        == ["node-0.log"] * 2 + ["node-1.log"] * 2
    )
    for output in outputs:
        text = output.getvalue()
        assert text.index("variant 1 of 2: learning_rate=0.1") < text.index("variant 2 of 2: learning_rate=0.2")
        assert text.count("all nodes hold the same parameters, to the bit") == 2
        assert text.count("report: ") == 2


async def test_silence_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    variants = experiment(tmp_path, logging="silent", sweep={"training.seed": [1, 2]})
    out = io.StringIO()
    assert await run_alone(worker_at(tmp_path), variants, out) == 0
    assert (out.getvalue(), capfd.readouterr()) == ("", ("", ""))
    assert [found(run)["status"] for run in runs(tmp_path)] == ["complete"] * 2


async def test_a_stop_leaves_a_partial_report_and_no_further_variant_runs(tmp_path: Path) -> None:
    variants = experiment(tmp_path, training={**TRAINING, "steps": 10**6}, sweep={"training.seed": [1, 2]})
    stopping = NodeStop()
    stopping.after_a_step().signal = signal.SIGINT
    out = io.StringIO()
    assert await run_alone(worker_at(tmp_path, stopping=stopping), variants, out) == 130
    (run,) = runs(tmp_path)
    assert (found(run)["status"], found(run)["reason"]) == ("stopped", "SIGINT")
    assert found(run)["nodes"][0]["steps"] == 1
    assert "variant 2" not in out.getvalue()


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (PeerLost(rank=1, reason="gone"), "failed", "rank 1 is lost: gone"),
        (asyncio.CancelledError(), "stopped", "by a signal, before its first step or for the second time"),
        (ZeroDivisionError("a model"), "failed", "a model"),
    ],
)
async def test_what_went_wrong_is_in_the_results_with_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: str, reason: str
) -> None:
    variants = experiment(tmp_path, sweep={"training.seed": [1, 2]})
    pretend(monkeypatch, error)
    with pytest.raises(type(error)):
        await run_alone(worker_at(tmp_path), variants, io.StringIO())
    (run,) = runs(tmp_path)
    assert (found(run)["status"], found(run)["reason"]) == (status, reason)
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2]


async def test_different_parameters_are_an_error_and_told_in_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = experiment(tmp_path, nodes=2)
    pretend(monkeypatch, {0: told.result(), 1: told.result(fingerprint="bb")})
    with pytest.raises(RingwideError, match="the nodes hold different parameters: aa on node 0; bb on node 1"):
        await run_alone(worker_at(tmp_path), variants, io.StringIO())
    (run,) = runs(tmp_path)
    assert found(run)["status"] == "failed"
    assert "different parameters" in found(run)["reason"]
    assert [node["rank"] for node in found(run)["nodes"]] == [0, 1]


@pytest.mark.parametrize("given", [False, True])
async def test_a_launcher_hears_everything_as_json(
    tmp_path: Path, given: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = experiment(tmp_path, logging="verbose")
    directory = tmp_path / "given" if given else None
    assert await run_and_tell(worker_at(tmp_path), variants, directory) == 0
    messages: list[Message | None] = [decode(line) for line in capsys.readouterr().out.splitlines()]
    assert isinstance(messages[0], TrainingPlan)
    assert isinstance(messages[-1], Result)
    assert None not in messages
    (log,) = [tmp_path / "given" / "node-0.log"] if given else (tmp_path / "runs").glob("*/node-0.log")
    assert log.read_text().splitlines()[-1].startswith("result ")
