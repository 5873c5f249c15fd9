"""One node, in this process, alone in its ring; rings of several are in tests/system."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ringwide.bootstrap.protection import make_key_file
from ringwide.config.ring_config import RingConfig
from ringwide.experiment.find_peers import free_ports, write_peers
from ringwide.experiment.node_messages import decode
from ringwide.node import main
from ringwide.ring import Ring, join
from ringwide.training.progress import Evaluation, Result, TrainingPlan

QUICK = ["--sizes", "64", "1KiB", "--seconds-per-size", "0"]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    write_peers(tmp_path / "peers.txt", free_ports(1, random.Random()))
    return ["--rank", "0", "--peers", str(tmp_path / "peers.txt")]


def written(path: Path, nodes: int) -> str:
    path.write_text(f"name: t\nnodes: {nodes}\ntraining: {{hidden_sizes: [8], batch_size: 800, epochs: 2}}\n")
    return str(path)


def test_the_table_ends_with_the_verdict(alone: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*alone, *QUICK]) == 0
    names, units, *rows, verdict = capsys.readouterr().out.splitlines()
    assert names.split() == ["#", "size", "count", "dtype", "op", "algorithm", "time", "algbw", "busbw", "wrong"]
    assert units.startswith("#")
    assert {row.split()[2] for row in rows} >= {"float64", "float32", "float16", "bfloat16", "int8", "uint8"}
    assert verdict == f"rank 0 of 1: {len(rows)} all-reduces checked, all right"


def test_json_is_one_document(alone: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*alone, *QUICK, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["rank"], document["size"], document["wrong"]) == (0, 1, 0)
    assert {row["nbytes"] for row in document["rows"]} == {64, 1024}


def test_the_check_is_of_the_ring_that_was_asked_for(
    alone: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[RingConfig] = []

    def noted(*, config: RingConfig, **others: Any) -> Any:
        joined.append(config)
        return join(config=config, **others)

    monkeypatch.setattr("ringwide.ring.join", noted)
    make_key_file(tmp_path / "ring.key")
    key = ["--key-file", str(tmp_path / "ring.key")]
    assert main([*alone, *QUICK, *key, "--set", "ring.encrypt=true", "--set", "ring={lanes: 3, encrypt: true}"]) == 0
    assert main([*alone, *QUICK]) == 0
    assert joined == [RingConfig(encrypt=True, lanes=3, key_file=tmp_path / "ring.key"), RingConfig()]


def test_a_wrong_element_ends_with_1(
    alone: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(self: Ring, tensors: Any, op: str = "mean") -> Any:
        tensors[0] += 1
        return tensors

    monkeypatch.setattr(Ring, "allreduce", wrong)
    assert main([*alone, *QUICK]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_an_experiment_leaves_a_report(alone: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*alone, "--config", written(tmp_path / "e.yaml", nodes=1)]) == 0
    *_, header, row, in_all, equal, report = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["node", "batches"]
    assert row.split()[:2] == ["0", "4"]
    assert in_all.startswith("in all: 4 batches")
    assert equal.startswith("all nodes hold the same parameters, to the bit")
    (run,) = (tmp_path / "runs").iterdir()
    assert report == f"report: runs/{run.name}/report.html"
    assert (run / "report.html").exists()


def test_an_experiment_speaks_json_lines_to_its_launcher(
    alone: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*alone, "--json", "--config", written(tmp_path / "e.yaml", nodes=1)]) == 0
    messages = [decode(line) for line in capsys.readouterr().out.splitlines()]
    plan, *progress, evaluation, result = messages
    assert isinstance(plan, TrainingPlan)
    assert [step.number for message in progress for step in message.steps] == [1, 2, 3, 4]
    assert isinstance(evaluation, Evaluation)
    assert isinstance(result, Result)
    assert (result.steps, result.test_loss) == (4, evaluation.loss)


@pytest.mark.parametrize("experiment", [False, True])
def test_listening_beyond_loopback_must_be_asked_for(
    alone: list[str], experiment: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = tmp_path / "peers.txt"
    peers.write_text(peers.read_text().replace("127.0.0.1", "0.0.0.0"))
    what = ["--config", written(tmp_path / "e.yaml", nodes=1)] if experiment else QUICK
    assert main([*alone, *what]) == 2
    error = capsys.readouterr().err
    for cure in ("python -m ringwide keygen FILE", "key_file:", "--key-file", "RINGWIDE_KEY_FILE", "--insecure"):
        assert cure in error
    make_key_file(tmp_path / "ring.key")
    for allowed in (["--insecure"], ["--key-file", str(tmp_path / "ring.key")]):
        assert main([*alone, *what, *allowed]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "1furlong"], "--sizes: '1furlong': not a size; write bytes, or a unit as in 64KiB or 1MiB"),
        (["--sizes", "0"], "--sizes: '0': out of range"),
        (["--sizes", "1TiB"], "--sizes: '1TiB': out of range"),
        (["--seconds-per-size", "-1"], "--seconds-per-size: -1: out of range"),
        (["--seconds-per-size", "nan"], "--seconds-per-size: nan: out of range"),
        (["--rank", "3"], "rank 3 is out of range"),
        (["--set", "ring.encrpt=true"], "--set ring.encrpt=true: ring.encrpt: unknown key; did you mean ring.encrypt?"),
        (["--set", "ring.lanes=none"], "--set ring.lanes=none: ring.lanes: 'none': should be a valid integer"),
        (["--set", "ring.encrypt=true"], "--set ring.encrypt=true: ring: encrypt needs the key that all ranks share"),
        (["--set", "ring.lanes"], "--set ring.lanes: there is no value"),
        (["--set", "training.epochs=2"], "--set training.epochs=2: training is for an experiment; name its file with"),
        (["--set", "rin.lanes=2"], "--set rin.lanes=2: rin is for an experiment; name its file with --config"),
        (["--resume", "runs/x"], "--resume runs/x: there is no experiment to resume; name it with --config"),
    ],
)
def test_a_mistake_is_one_line_and_2(
    alone: list[str], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*alone, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ringwide: error: {message}") or message in error
    assert error.count("\n") == 1


def test_an_experiment_of_another_size_than_the_peers_is_refused(
    alone: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*alone, "--config", written(tmp_path / "e.yaml", nodes=3)]) == 2
    error = capsys.readouterr().err
    assert "e.yaml: nodes: 3: but" in error
    assert "names 1 peers; make them equal" in error
