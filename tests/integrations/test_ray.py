"""Experiments on a real Ray cluster: what they bring back, and what is left when something is killed."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integrations.ray_cluster import (
    NODE,
    PATIENCE_SECONDS,
    Launcher,
    cluster_of_three,
    is_alive,
    kill,
    parent_of,
    processes,
    raylet_pid,
    until,
)

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(600)]

SHORT = "name: t\nnodes: 3\ntraining: {model: linear, data: clusters, steps: 40}\n"
LONG = "name: t\nnodes: 3\ntraining: {model: linear, data: clusters, seconds: 600}\n"
OWN = "name: t\nnodes: 2\ntraining: {model: 'own:build', data: clusters, steps: 40}\nlogging: verbose\n"
OWN_MODEL = """
import sys

def build(*_, **__):
    print("some words before", file=sys.stderr)
    raise RuntimeError("this model cannot be built")
"""
IS_EMPTY = """
import ray, sys, time
from ray.util.placement_group import placement_group_table
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
deadline = time.monotonic() + float(sys.argv[2])
while True:
    groups = [each["state"] for each in placement_group_table().values() if each["state"] != "REMOVED"]
    free, total = (found().get("CPU", 0) for found in (ray.available_resources, ray.cluster_resources))
    if free == total and not groups:
        break
    if time.monotonic() > deadline:
        sys.exit(f"{free} of {total} CPUs are free, groups: {groups}")
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as monkeypatch, cluster_of_three(monkeypatch) as found:
        yield found


def launched(directory: Path, experiment: str, cluster: Any, *words: str) -> Launcher:
    return Launcher(directory, experiment, "--on", "ray", "--address", cluster.address, *words)


def require_nothing_left(launcher: Launcher, cluster: Any, *pids: int) -> None:
    """Neither nodes nor actors, and the cluster is as free as it was."""
    until(lambda: not launcher.nodes(), "all nodes are gone")
    until(lambda: not any(map(is_alive, pids)), "all actors are gone")
    command = [sys.executable, "-c", IS_EMPTY, cluster.address, str(PATIENCE_SECONDS)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS, check=False)
    assert answer.returncode == 0, answer.stderr


def test_a_run_brings_back_what_a_run_on_this_machine_does(tmp_path: Path, cluster: Any) -> None:
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    with Launcher(here, SHORT) as local, launched(there, SHORT, cluster) as remote:
        assert (local.wait(), remote.wait()) == (0, 0), remote.errors
        require_nothing_left(remote, cluster)
    ours, theirs = local.results, remote.results
    assert theirs["status"] == "complete"
    assert [node["rank"] for node in theirs["nodes"]] == [0, 1, 2]
    assert ours.keys() == theirs.keys()
    fingerprints = [line for line in local.said if line.startswith("all nodes hold the same parameters")]
    assert fingerprints
    assert fingerprints == [line for line in remote.said if line.startswith("all nodes hold the same parameters")]
    assert any(line.startswith("step 40/40") for line in remote.said)
    names = [sorted(path.name for path in found.glob("runs/*/*")) for found in (here, there)]
    assert names[0] == names[1]
    (metrics,) = there.glob("runs/*/metrics.jsonl")
    assert sum('"node"' in line and '"step": 40,' in line for line in metrics.read_text().splitlines()) == 3


def test_a_node_that_fails_is_heard(tmp_path: Path, cluster: Any) -> None:
    (tmp_path / "own.py").write_text(OWN_MODEL)
    with launched(tmp_path, OWN, cluster) as launcher:
        assert launcher.wait() != 0
        assert "some words before" in launcher.errors
        assert "this model cannot be built" in launcher.errors
        assert list(launcher.directory.glob("runs/*")) == [], "it was refused before it began"
        require_nothing_left(launcher, cluster)


def test_a_node_that_is_killed_is_named(tmp_path: Path, cluster: Any) -> None:
    with launched(tmp_path, LONG, cluster) as launcher:
        launcher.until_it_says("^step ")
        keepers = [parent_of(pid) for pid in launcher.nodes().values()]
        kill(launcher.nodes()[1])
        assert launcher.wait() == 1
        assert "node 1 on " in launcher.errors
        assert " was killed by SIGKILL; the others were ended" in launcher.errors
        assert launcher.results["status"] == "failed"
        require_nothing_left(launcher, cluster, *keepers)


def test_an_actor_that_is_killed_takes_its_node_with_it(tmp_path: Path, cluster: Any) -> None:
    with launched(tmp_path, LONG, cluster) as launcher:
        launcher.until_it_says("^step ")
        keepers = [parent_of(pid) for pid in launcher.nodes().values()]
        kill(parent_of(launcher.nodes()[2]))
        assert launcher.wait() == 1
        assert "node 2 on " in launcher.errors
        assert "was lost with its Ray actor" in launcher.errors
        assert launcher.results["status"] == "failed"
        require_nothing_left(launcher, cluster, *keepers)


def test_ctrl_c_stops_all_nodes_after_a_step(tmp_path: Path, cluster: Any) -> None:
    with launched(tmp_path, LONG, cluster) as launcher:
        launcher.until_it_says("^step ")
        keepers = [parent_of(pid) for pid in launcher.nodes().values()]
        launcher.signal(signal.SIGINT)
        assert launcher.wait() == 128 + signal.SIGINT
        said = "".join(launcher.said)
        assert "stopped by SIGINT after step" in said
        assert "all nodes hold the same parameters" in said
        assert (launcher.results["status"], launcher.results["reason"]) == ("stopped", "SIGINT")
        assert len(launcher.results["nodes"]) == 3
        require_nothing_left(launcher, cluster, *keepers)


def test_a_launcher_that_is_killed_leaves_nothing(tmp_path: Path, cluster: Any) -> None:
    with launched(tmp_path, LONG, cluster) as launcher:
        launcher.until_it_says("^step ")
        keepers = [parent_of(pid) for pid in launcher.nodes().values()]
        assert len(keepers) == 3
        launcher.signal(signal.SIGKILL)
        require_nothing_left(launcher, cluster, *keepers)


def test_a_ray_node_that_is_killed_takes_its_nodes_with_it(tmp_path: Path, cluster: Any) -> None:
    with launched(tmp_path, LONG, cluster) as launcher:
        launcher.until_it_says("^step ")
        nodes = launcher.nodes()
        keepers = [parent_of(pid) for pid in nodes.values()]
        victim = next(node for node in cluster.worker_nodes if raylet_pid(node) in map(parent_of, keepers))
        (rank,) = (rank for rank, pid in nodes.items() if parent_of(parent_of(pid)) == raylet_pid(victim))
        kill(raylet_pid(victim))
        assert launcher.wait() == 1
        assert f"node {rank} on " in launcher.errors
        assert launcher.results["status"] == "failed"
        cluster.remove_node(victim, allow_graceful=False)
        cluster.add_node(**NODE)
        require_nothing_left(launcher, cluster, *keepers)


def test_too_small_a_cluster_is_said_in_time(tmp_path: Path, cluster: Any) -> None:
    experiment = "name: t\nnodes: 50\nring: {start_timeout_seconds: 5}\n"
    with launched(tmp_path, experiment, cluster) as launcher:
        assert launcher.wait() == 3
        assert "50 nodes with 1 CPU each; it has 12 CPUs on 3 Ray nodes (at most 4 on one), " in launcher.errors
        assert any(line.startswith("waiting for the Ray cluster") for line in launcher.said)
        require_nothing_left(launcher, cluster)


def test_ctrl_c_ends_the_wait_for_room(tmp_path: Path, cluster: Any) -> None:
    experiment = "name: t\nnodes: 50\nring: {start_timeout_seconds: 3600}\n"
    with launched(tmp_path, experiment, cluster) as launcher:
        launcher.until_it_says("^waiting for the Ray cluster")
        launcher.signal(signal.SIGINT)
        assert launcher.wait() == 128 + signal.SIGINT
        assert (launcher.results["status"], launcher.results["reason"]) == ("stopped", "SIGINT")
        require_nothing_left(launcher, cluster)


def test_a_variant_gives_its_room_to_the_next(tmp_path: Path, cluster: Any) -> None:
    sweep = "sweep: {training.learning_rate: [0.1, 0.05]}\n"
    with launched(tmp_path, SHORT + sweep, cluster, "--cpus-per-node", "4") as launcher:
        assert launcher.wait() == 0, launcher.errors
        require_nothing_left(launcher, cluster)
    assert sum(line.startswith("all nodes hold the same parameters") for line in launcher.said) == 2


def test_where_there_is_no_cluster_none_is_started(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    before = {pid for pid, words in processes() if "raylet" in words[0]}
    with Launcher(tmp_path, SHORT, "--on", "ray", "--address", "127.0.0.1:1") as launcher:
        assert launcher.wait() == 3
        assert "--address: 127.0.0.1:1: no Ray cluster answers there: Connection refused" in launcher.errors
    assert {pid for pid, words in processes() if "raylet" in words[0]} <= before


def test_ray_train_with_our_backend(tmp_path: Path, cluster: Any) -> None:
    """The script is what a user writes; `backend="ringwide"` is known to torch without an import."""
    pytest.importorskip("pyarrow", reason="Ray Train needs the extra ray[train]")
    script = Path(__file__).with_name("ray_train_loop.py")
    command = [sys.executable, str(script), cluster.address, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS, check=False)
    assert answer.returncode == 0, answer.stderr
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    expected = {"backend": "ringwide", "size": 2, "parameters": [3.0, 1.0], "equal": True, "rings": True}
    assert found == [expected, expected]
