"""Errors before there is a cluster, or if there is none. Nothing here needs Ray."""

import re
import socket
from pathlib import Path

import pytest

from ringwide.__main__ import main
from ringwide.errors import ConfigError, JoinError
from ringwide.experiment.ray import cluster
from ringwide.experiment.ray.cluster import connected


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)


def experiment(directory: Path) -> str:
    (directory / "e.yaml").write_text("name: t\nnodes: 2\n")
    return str(directory / "e.yaml")


def test_without_the_package_it_is_said_how_to_install_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", experiment(tmp_path), "--on", "ray"]) == ConfigError.exit_code
    assert "pip install 'ringwide[ray]'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--address=10.0.0.1:6379", "--cpus-per-node=2"])
def test_options_of_ray_without_ray(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", experiment(tmp_path), option]) == ConfigError.exit_code
    assert re.search(f"{option.replace('=', ' ')}: .* add --on ray", capsys.readouterr().err)


@pytest.mark.parametrize("cpus", ["0", "-1", "1025"])
def test_cpus_have_limits(cpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["run", experiment(tmp_path), "--on", "ray", "--cpus-per-node", cpus])
    assert code == ConfigError.exit_code
    assert f"--cpus-per-node {cpus}: out of range; choose from 1 to 1024" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("local", "--address: local: without --on ray all nodes run on this machine"),
        ("ray://10.0.0.1:10001", "--address: ray://10.0.0.1:10001: the launcher must run inside the cluster"),
        ("head", "--address: 'head': it needs a host and a port"),
    ],
)
def test_addresses_that_cannot_be_meant(address: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)), connected(address):
        pass


def test_who_named_a_wrong_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://10.0.0.1:8265")
    with pytest.raises(ConfigError, match=r"^RAY_ADDRESS: http://10.0.0.1:8265: "), connected(None):
        pass


def test_a_cluster_that_does_not_answer_is_named_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # but nobody listens
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(JoinError, match=f"^--address: {where}: no Ray cluster answers there: .*ray start --head"):
            cluster._probe(where, "--address")
