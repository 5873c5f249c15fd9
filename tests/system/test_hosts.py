"""Nodes without a launcher, as on machines of their own: each in its own directory, with its own files."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ringwide.experiment.find_peers import free_ports, write_peers

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

NODES = 2
OWN = """
import torch

class Net(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(inputs, 16), torch.nn.BatchNorm1d(16)
        self.last = torch.nn.Linear(16, outputs)
        self.register_buffer("mask", torch.ones(16, dtype=torch.bool))

    def forward(self, inputs):
        return self.last(self.norm(self.first(inputs)) * self.mask)

def net(inputs, outputs):
    return Net(inputs[0], outputs)

def gentle(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)

def points(shift):
    chance = torch.Generator().manual_seed(1)
    labels = torch.arange(200) % 3
    features = torch.randn(200, 4, generator=chance) + labels.unsqueeze(1) * 2 + shift
    return (features[:150], labels[:150]), (features[150:], labels[150:])
"""
POINTS = {"data": "own:points", "data_options": {"shift": 0}, "batch_size": 20}


class Hosts:
    """One directory for each, with an experiment and the peers in it."""

    def __init__(self, directory: Path, *experiments: dict[str, Any]) -> None:
        self.directories = [directory / f"host-{rank}" for rank in range(NODES)]
        write_peers(directory / "peers.txt", free_ports(NODES, random.Random()))
        self._peers = directory / "peers.txt"
        for rank, host in enumerate(self.directories):
            host.mkdir(exist_ok=True)
            keys = experiments[rank % len(experiments)]
            given = {"name": "t", "nodes": NODES, "report": {"html": False}, **keys}
            (host / "e.yaml").write_text(yaml.safe_dump(given))
            (host / "own.py").write_text(OWN)

    @contextmanager
    def started(self, *words: Sequence[str]) -> Iterator[list["subprocess.Popen[str]"]]:
        """`words`: more of the command line, of each host."""
        command = [sys.executable, "-m", "ringwide.node", "--peers", str(self._peers), "--config", "e.yaml"]
        nodes = []
        try:
            for rank, host in enumerate(self.directories):
                more = words[rank] if words else []
                nodes.append(
                    subprocess.Popen(
                        [*command, "--rank", str(rank), *more],
                        cwd=host,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                        env={**os.environ, "OMP_NUM_THREADS": "1"},
                    )
                )
            yield nodes
        finally:
            for node in nodes:
                node.kill()
                node.communicate()

    def run(self, *words: Sequence[str]) -> list[tuple[int, str, str]]:
        """The exit code, the output and the complaints of each."""
        with self.started(*words) as nodes:
            return [(node.returncode, *said) for node in nodes if (said := node.communicate(timeout=300))]

    def runs(self) -> list[Path]:
        return [max((host / "runs").iterdir()) for host in self.directories]

    def results(self) -> list[dict[str, Any]]:
        return [json.loads((run / "results.json").read_text()) for run in self.runs()]


def fingerprints(documents: list[dict[str, Any]]) -> set[str]:
    return {node["fingerprint"] for document in documents for node in document["nodes"]}


def test_a_model_and_a_loss_of_ones_own_and_a_report_on_every_host(tmp_path: Path) -> None:
    training = {
        **POINTS,
        "model": "own:net",
        "loss": "own:gentle",
        "epochs": 20,
        "learning_rate": 0.05,
        "overlap": True,
    }
    hosts = Hosts(tmp_path, {"training": training, "logging": "verbose"})
    for rank, (code, output, errors) in enumerate(hosts.run()):
        assert (code, errors) == (0, "")
        assert "all nodes hold the same parameters, to the bit" in output
        assert f"report: {hosts.runs()[rank].relative_to(hosts.directories[rank])}/report.md" in output
    documents = hosts.results()
    assert len(fingerprints(documents)) == 1
    for rank, document in enumerate(documents):
        assert (document["status"], [node["rank"] for node in document["nodes"]]) == ("complete", [0, 1])
        assert document["plan"]["overlapped"]
        assert {path.name for path in hosts.runs()[rank].iterdir()} >= {"report.md", f"node-{rank}.log"}
        for node in document["nodes"]:
            assert node["test_accuracy"] > 0.5
            # In shares of what is shared, so which is more depends on who else uses torch at that moment.
            assert min(node["torch_memory_bytes"], node["memory_bytes"]) > 0
    assert documents[0]["nodes"] == documents[1]["nodes"]


def test_a_signal_to_one_host_stops_all_and_each_goes_on_from_its_own_files(tmp_path: Path) -> None:
    endless = {**POINTS, "model": "linear", "steps": 10**6}
    hosts = Hosts(tmp_path, {"training": endless, "checkpoint": {"every_steps": 10**6}})
    with hosts.started() as nodes:
        until_it_trains(nodes[0])
        nodes[1].send_signal(signal.SIGINT)
        outputs = [node.communicate(timeout=300) for node in nodes]
        assert [node.returncode for node in nodes] == [130, 130], outputs
        assert [errors for _, errors in outputs] == ["", ""]
    stopped, documents = hosts.runs(), hosts.results()
    for document in documents:
        assert (document["status"], document["reason"]) == ("stopped", "SIGINT")
        assert [node["stopped_by"] for node in document["nodes"]] == [signal.SIGINT] * 2
    made = {node["steps"] for document in documents for node in document["nodes"]}
    assert (len(made), len(fingerprints(documents))) == (1, 1)
    assert all((run / "report.md").exists() for run in stopped)
    assert [len(list((run / "checkpoints").glob("*.pt"))) for run in stopped] == [2, 1]  # the model is on the first

    last = made.pop() + 3
    words = [["--resume", str(run), "--set", f"training.steps={last}", "--set", "name=u"] for run in stopped]
    for code, _, errors in hosts.run(*words):
        assert (code, errors) == (0, "")
    for document in hosts.results():
        assert (document["name"], document["plan"]["first_step"], document["nodes"][1]["steps"]) == ("u", last - 2, 3)
    assert len(fingerprints(hosts.results())) == 1


def until_it_trains(node: "subprocess.Popen[str]") -> None:
    assert node.stdout is not None
    for line in node.stdout:
        if line.startswith("step "):
            return
    pytest.fail(f"it never trained: {node.communicate()[1]}")


def test_a_host_with_another_experiment_is_named_by_all(tmp_path: Path) -> None:
    ours = {"training": {**POINTS, "model": "linear"}}
    hosts = Hosts(tmp_path, ours, {"training": {**ours["training"], "learning_rate": 0.2}})
    told_by_all(hosts, "training: rank 1 has other settings under 'training' than rank 0")


def test_a_host_with_other_data_is_named_by_all(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, {"training": {**POINTS, "model": "linear"}})
    own = hosts.directories[1] / "own.py"
    own.write_text(own.read_text().replace("+ shift", "+ shift + 1"))
    told_by_all(hosts, "training: rank 1 has other data 'own:points' than rank 0")


def told_by_all(hosts: Hosts, what: str) -> None:
    for rank, (code, _, errors) in enumerate(hosts.run()):
        assert code == 2, errors
        assert errors.startswith(f"ringwide: error: {what} (this is rank {rank});")
        assert errors.count("\n") == 1
    assert [list(directory.glob("runs/*")) for directory in hosts.directories] == [[]] * len(hosts.directories)
