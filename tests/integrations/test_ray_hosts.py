"""A Ray cluster of two hosts that share neither loopback nor a disk: nodes listen beyond loopback, with a key."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.hosts import Host, HostsUnavailable, make_hosts

from integrations.ray_cluster import PATIENCE_SECONDS, Launcher, until

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(900)]

EXPERIMENT = "name: t\nnodes: 2\nlogging: verbose\ntraining: {model: linear, data: clusters, steps: 40}\n"
CHECKPOINTS = "checkpoint: {every_steps: 20}\n"
ARE_THERE = "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR'); sys.exit(2 - len(ray.nodes()))"


@contextmanager
def ray_node(host: Host, arguments: Sequence[str], hidden: Path | None, log: Path) -> Iterator[None]:
    """`hidden`: a directory that this host does not see; in its place it has an empty one of its own."""
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={host.address}"]
    command = [*start, "--num-cpus=4", f"--object-store-memory={80 * 1024**2}", "--disable-usage-stats", *arguments]
    if hidden is not None:
        command = ["sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden), *command]
    with log.open("w") as output:
        process = subprocess.Popen(host.command(command), stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def launchers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Makes a launcher on the first of the hosts, from an experiment."""
    pytest.importorskip("ray")
    directory = tmp_path_factory.mktemp("hosts")
    hidden = directory / "hidden"
    hidden.mkdir()
    home = tempfile.mkdtemp(prefix="ray-")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
        monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            first, second = stack.enter_context(make_hosts(2, 1e9))
        except HostsUnavailable as error:
            pytest.skip(str(error))
        address = f"{first.address}:6379"
        head = ["--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={home}"]
        stack.enter_context(ray_node(first, head, None, directory / "first.txt"))
        here = first.command([sys.executable, "-c", ARE_THERE, address])
        until(lambda: os.path.exists(f"{home}/session_latest/sockets/raylet"), "the head node is there")
        stack.enter_context(ray_node(second, [f"--address={address}"], hidden, directory / "second.txt"))
        until(
            lambda: subprocess.run(here, capture_output=True, check=False).returncode == 0, "both Ray nodes are there"
        )

        def launcher(name: str, experiment: str) -> Launcher:
            (hidden / name).mkdir()
            return Launcher(hidden / name, experiment, "--on", "ray", "--address", address, before=first.command([]))

        yield launcher


def test_nodes_of_two_hosts_meet_and_bring_everything_back(launchers: Any) -> None:
    with launchers("meet", EXPERIMENT) as launcher:
        assert launcher.wait() == 0, launcher.errors
    (placed,) = (line for line in launcher.said if line.startswith("on Ray: "))
    assert sorted(re.findall(r"on (10\.77\.0\.\d)\b", placed)) == ["10.77.0.1", "10.77.0.2"]
    assert launcher.results["status"] == "complete"
    logs = sorted(launcher.directory.glob("runs/*/node-*.log"))
    assert [log.name for log in logs] == ["node-0.log", "node-1.log"]
    assert all("step=40 " in log.read_text() for log in logs)


def test_checkpoints_that_could_not_be_read_again_are_refused(launchers: Any) -> None:
    with launchers("kept", EXPERIMENT + CHECKPOINTS) as launcher:
        assert launcher.wait() == 2
        assert "on 10.77.0.2 does not see" in launcher.errors
    assert list(launcher.directory.glob("runs/*")) == []
