"""The commands as a person runs them: real processes, real signals."""

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ringwide.experiment.find_peers import free_ports, write_peers

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
LONG = "name: long\nnodes: 2\ntraining: {hidden_sizes: [8], batch_size: 100, epochs: 1000000}\n"
SHORT = "name: short\nnodes: 2\ntraining: {hidden_sizes: [8], steps: 3}\nreport: {html: false}\n"
OWN_MODEL = """
import torch

def bent(inputs, outputs):
    return torch.nn.Sequential(torch.nn.Linear(inputs[0], 4), torch.nn.Tanh(), torch.nn.Linear(4, outputs))
"""


def ringwide(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ringwide", *arguments]


class Launcher:
    """`ringwide run`, seen to train, with a handle on each of its nodes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self._wait_for_a_step()
        self.nodes = [
            pid for pid in _descendants(process.pid) if os.getsid(pid) == pid
        ]  # nodes have their own sessions
        self._handles = [os.pidfd_open(pid) for pid in self.nodes]

    def _wait_for_a_step(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("step "):
                return
        pytest.fail(f"it never trained: {self.process.communicate()[1]}")

    def nodes_left(self) -> list[int]:
        """Those that have not ended a minute from now. A handle is readable once its process has ended."""
        return [
            pid
            for pid, handle in zip(self.nodes, self._handles, strict=True)
            if not select.select([handle], [], [], 60)[0]
        ]

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)


def _descendants(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task").glob("*/children")  # of each thread that has started some
    children = [int(child) for path in listed for child in path.read_text().split()]
    return [found for child in children for found in (child, *_descendants(child))]


@contextmanager
def launched(directory: Path) -> Iterator[Launcher]:
    """The long experiment; what it leaves behind for good is in `runs`, what only for the time being in `temporary`."""
    (directory / "long.yaml").write_text(LONG)
    (directory / "temporary").mkdir()
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                ringwide("run", "long.yaml"),
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "TMPDIR": str(directory / "temporary")},
            )
        )
        stack.callback(process.kill)
        launcher = Launcher(process)
        stack.callback(launcher.close)
        assert len(launcher.nodes) == 2
        yield launcher


def run(directory: Path, experiment: str | Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a text as an experiment, or a file that is there already."""
    if isinstance(experiment, str):
        (directory / "experiment.yaml").write_text(experiment)
        experiment = directory / "experiment.yaml"
    command = ringwide("run", str(experiment), *arguments)
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300)


def run_in(directory: Path) -> Path:
    """Where the newest run is."""
    return max((directory / "runs").iterdir())


def results_of(run: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((run / "results.json").read_text())
    return document


def test_the_quickstart_learns_and_leaves_a_report(tmp_path: Path) -> None:
    ran = run(tmp_path, ROOT / "configs" / "quickstart.yaml")
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^step 690/690  epoch 30  loss \S+  \S+ batches/s  \S+ .B/s$", ran.stdout, re.MULTILINE)
    assert "all nodes hold the same parameters, to the bit" in ran.stdout
    made = run_in(tmp_path)
    assert ran.stdout.splitlines()[-1] == f"report: {made.relative_to(tmp_path) / 'report.html'}"
    assert (made / "report.html").stat().st_size > 10_000
    found = results_of(made)
    assert found["status"] == "complete"
    assert [node["rank"] for node in found["nodes"]] == [0, 1, 2, 3]
    assert len({node["fingerprint"] for node in found["nodes"]}) == 1
    for node in found["nodes"]:
        assert (node["batches"], node["loss"] < 0.1, node["test_accuracy"] >= 0.95) == (690, True, True)
        assert 0 < node["network_seconds"] < node["seconds"]
        assert 0 < node["torch_memory_bytes"] < node["memory_bytes"] < node["peak_memory_bytes"]
    assert len((made / "metrics.jsonl").read_text().splitlines()) == 4 * 690 + 1  # and what it knew in the end


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_all_nodes_after_the_same_step(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with launched(tmp_path) as launcher:
        launcher.process.send_signal(number)
        output, errors = launcher.process.communicate(timeout=300)
        assert launcher.process.returncode == code
        assert launcher.nodes_left() == []
        assert errors == ""
    assert f"stopped by {number.name} after step " in output
    found = results_of(run_in(tmp_path))
    assert (found["status"], found["reason"]) == ("stopped", number.name)
    assert [(node["rank"], node["stopped_by"]) for node in found["nodes"]] == [(0, number), (1, number)]
    assert len({node["fingerprint"] for node in found["nodes"]}) == 1
    assert (run_in(tmp_path) / "report.html").exists()
    assert os.listdir(tmp_path / "temporary") == []


def test_no_node_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with launched(tmp_path) as launcher:
        launcher.process.kill()
        launcher.process.communicate(timeout=300)
        assert launcher.nodes_left() == []
    assert results_of(run_in(tmp_path))["reason"].startswith("it has not finished")


def test_a_node_that_dies_is_named_and_ends_the_others(tmp_path: Path) -> None:
    with launched(tmp_path) as launcher:
        os.kill(launcher.nodes[1], signal.SIGKILL)
        _, errors = launcher.process.communicate(timeout=300)
        assert launcher.process.returncode == 1
        assert launcher.nodes_left() == []
    told = re.match(r"ringwide: error: (node [01] was killed by SIGKILL); the others were ended\.", errors)
    assert told, errors
    found = results_of(run_in(tmp_path))
    assert (found["status"], found["reason"]) == ("failed", told[1])
    assert (run_in(tmp_path) / "report.html").exists()


def test_silence_prints_nothing_and_a_model_is_found_beside_its_experiment(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_MODEL)
    training = "training: {model: 'mine:bent', steps: 3}\nreport: {html: false}\n"
    ran = run(tmp_path, f"name: own\nnodes: 2\nlogging: silent\n{training}")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert results_of(run_in(tmp_path))["plan"]["parameters"] == 64 * 4 + 4 + 4 * 10 + 10


def test_a_sweep_compares_its_variants(tmp_path: Path) -> None:
    ran = run(tmp_path, SHORT + "sweep: {ring.codec: [none, zlib]}\n")
    assert ran.returncode == 0, ran.stderr
    assert "variant 2 of 2: codec=zlib" in ran.stdout
    assert results_of(run_in(tmp_path))["runs"] == ["01-codec=none", "02-codec=zlib"]
    first, second = (results_of(run_in(tmp_path) / slug) for slug in ("01-codec=none", "02-codec=zlib"))
    assert (first["config"]["ring"]["codec"], second["config"]["ring"]["codec"]) == ("none", "zlib")
    assert first["nodes"][0]["fingerprint"] == second["nodes"][0]["fingerprint"]  # a codec that loses nothing


def test_a_run_can_be_resumed(tmp_path: Path) -> None:
    kept = "checkpoint: {every_steps: 3}\n"
    assert run(tmp_path, SHORT + kept).returncode == 0
    short = run_in(tmp_path)
    resumed = run(
        tmp_path, SHORT + kept, "--set", "training.steps=5", "--resume", str(short), "--set", "name=t-resumed"
    )
    assert resumed.returncode == 0, resumed.stderr
    whole = run(tmp_path, SHORT, "--set", "training.steps=5", "--set", "name=u-whole")
    assert whole.returncode == 0, whole.stderr
    found = {path.name[0]: results_of(path) for path in (tmp_path / "runs").iterdir()}
    assert (found["t"]["plan"]["first_step"], found["t"]["nodes"][0]["steps"]) == (4, 2)
    assert found["t"]["nodes"][0]["fingerprint"] == found["u"]["nodes"][0]["fingerprint"]


CRASHES_ONCE = """
import os
from pathlib import Path

import torch

class Model(torch.nn.Linear):
    calls = 0

    def forward(self, numbers):
        Model.calls += 1
        if Model.calls == 12 and not Path("crashed").exists():
            Path("crashed").touch()
            os.kill(os.getpid(), 9)
        return super().forward(numbers)

def model(inputs, outputs):
    return Model(inputs[0], outputs)
"""
WITH_CHECKPOINTS = (
    "name: c\nnodes: 2\ntraining: {model: 'mine:model', steps: 20, batch_size: 8}\n"
    "checkpoint: {every_steps: 5}\nreport: {html: false}\n"
)


def test_a_run_that_is_restarted_ends_as_one_that_never_crashed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CRASHES_ONCE)
    crashed = run(tmp_path, WITH_CHECKPOINTS, "--restarts", "1")
    assert crashed.returncode == 0, crashed.stderr
    assert "restart, 1 left: resumes from runs/c-" in crashed.stderr
    restarted = results_of(run_in(tmp_path))
    whole = run(tmp_path, WITH_CHECKPOINTS, "--set", "name=whole")
    assert whole.returncode == 0, whole.stderr
    assert restarted["nodes"][0]["fingerprint"] == results_of(run_in(tmp_path))["nodes"][0]["fingerprint"]


def for_a_few_steps(path: Path) -> list[str]:
    """On two nodes; of a sweep, the last variant."""
    sweep = yaml.safe_load(path.read_text()).get("sweep", {})
    last = json.dumps({key: values[-1:] for key, values in sweep.items()})
    shorter = ["nodes=2", "training.steps=3", "report.html=false", *([f"sweep={last}"] if sweep else [])]
    return ["run", str(path), *(word for change in shorter for word in ("--set", change))]


def test_our_own_experiments_run(tmp_path: Path) -> None:
    """One after the other in one process, so that torch is imported once."""
    code = (
        "import json, sys; from ringwide.__main__ import main; print([main(words) for words in json.load(sys.stdin)])"
    )
    commands = json.dumps([for_a_few_steps(path) for path in CONFIGS])
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, input=commands, capture_output=True, text=True, timeout=300
    )
    assert ran.stdout.splitlines()[-1:] == [str([0] * len(CONFIGS))], ran.stdout[-5000:] + ran.stderr
    assert ran.stdout.count("all nodes hold the same parameters, to the bit") == len(CONFIGS)


def test_a_mistake_in_the_experiment_starts_nothing(tmp_path: Path) -> None:
    experiment = tmp_path / "e.yaml"
    experiment.write_text("name: t\nnodes: 2\nrings: {}\n")
    ran = subprocess.run(ringwide("run", str(experiment)), capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"ringwide: error: {experiment}:3: rings: unknown key; did you mean ring?\n"


def test_a_reader_that_has_had_enough_is_not_an_error() -> None:
    process = subprocess.Popen(ringwide("config", "schema"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.communicate(timeout=300)[1] == ""
    assert process.returncode == 141


@pytest.mark.parametrize("size", [2, 3])
def test_nodes_check_their_ring(tmp_path: Path, size: int) -> None:
    write_peers(tmp_path / "peers.txt", free_ports(size, random.Random()))
    common = ["--peers", str(tmp_path / "peers.txt"), "--sizes", "4KiB", "1MiB", "--seconds-per-size", "0"]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "ringwide.node", "--rank", str(rank), *common, *(["--json"] if rank == 1 else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    outputs = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [0] * size, outputs
    table, document = outputs[0][0].splitlines(), json.loads(outputs[1][0])
    assert table[-1] == f"rank 0 of {size}: {len(table) - 3} all-reduces checked, all right"
    assert (document["rank"], document["size"], document["wrong"]) == (1, size, 0)
    assert len(document["rows"]) == len(table) - 3
    if size > 2:
        assert outputs[2][0] == f"rank 2 of {size}: {len(table) - 3} all-reduces checked, all right\n"
