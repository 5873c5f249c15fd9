"""Files in examples/deploy/ do what docs/operators.md says of them, as far as one machine can show it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from local_ring import free_peers, own_ports
from ringwide.bootstrap.protection import make_key_file

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
UNIT = DEPLOY / "ringwide@.service"
PATIENCE_SECONDS = 110
LONG = """
name: long
nodes: 2
training: {model: mlp, hidden_sizes: [8], data: clusters, epochs: 1000000}
checkpoint: {every_steps: 20}
report: {html: false}
"""

system = pytest.mark.system


@pytest.mark.parametrize("script", sorted(DEPLOY.glob("*.sh")), ids=lambda path: path.name)
def test_a_script_is_bash_and_can_be_started(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/bin/bash\n")
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=PATIENCE_SECONDS)


class Node:
    """`start_node.sh` of one rank."""

    def __init__(self, rank: int, directory: Path) -> None:
        self._directory = directory
        self._began_with = self.last_checkpoint()
        environment = {
            "RINGWIDE_RANK": str(rank),
            "RINGWIDE_PEERS": "peers.txt",
            "EXPERIMENT": "long.yaml",
            "CHECKPOINTS": "shared",
            "PYTHON": sys.executable,
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [str(DEPLOY / "start_node.sh"), "--set", f"report.directory=runs-{rank}"],
            cwd=directory,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def last_checkpoint(self) -> str:
        return max((path.name for path in (self._directory / "shared").glob("step-?????????.pt")), default="")

    def wait_for_a_checkpoint(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:  # a line for every look at the steps
            if self.last_checkpoint() > self._began_with:
                return
        pytest.fail(f"no new checkpoint: {self.process.communicate()[1]}")

    def exit_code(self) -> int:
        self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode


def first_steps(directory: Path) -> list[int]:
    runs: list[dict[str, Any]] = [json.loads(path.read_text()) for path in directory.glob("runs-0/*/results.json")]
    return sorted(run["plan"]["first_step"] for run in runs)


@system
@pytest.mark.timeout(4 * PATIENCE_SECONDS)
def test_a_node_that_is_started_again_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "peers.txt").write_text("\n".join(free_peers(2)))
    (tmp_path / "long.yaml").write_text(LONG)
    nodes = [Node(rank, tmp_path) for rank in range(2)]
    try:
        nodes[0].wait_for_a_checkpoint()
        nodes[1].process.kill()
        assert [node.exit_code() for node in nodes] == [5, -signal.SIGKILL]

        nodes += [Node(rank, tmp_path) for rank in range(2)]
        nodes[2].wait_for_a_checkpoint()
        nodes[3].process.terminate()
        assert [node.exit_code() for node in nodes[2:]] == [143, 143]
    finally:
        for node in nodes:
            node.process.kill()
            node.process.communicate()
    first, second = first_steps(tmp_path)
    assert (first, second > 20) == (1, True)


def settings_of(unit: Path) -> list[tuple[str, str]]:
    return re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE)


def test_the_unit_starts_our_script_with_its_variables() -> None:
    told, script = dict(settings_of(UNIT)), (DEPLOY / "start_node.sh").read_text()
    assert Path(told["ExecStart"]).name == "start_node.sh"
    wanted = set(re.findall(r'"\$\{(\w+):\?\}"', script))
    given = set(re.findall(r"^(?:#   |Environment=)(\w+)=", UNIT.read_text(), re.MULTILINE))
    assert wanted == {"RINGWIDE_RANK", "RINGWIDE_PEERS", "EXPERIMENT", "CHECKPOINTS"}
    assert wanted <= given


@system
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """With a command and a user that this machine has."""
    text = UNIT.read_text().replace("/opt/ringwide/", f"{DEPLOY}/").replace("User=ringwide", "User=root")
    (tmp_path / UNIT.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (ran.returncode, ran.stderr) == (0, "")


SCONTROL = '#!/bin/bash\n[ "$*" = "show hostnames here" ] && echo 127.0.0.1\n'
SRUN = """#!/bin/bash
export SLURM_STEP_NUM_TASKS=2
SLURM_PROCID=1 "$@" & other=$!
SLURM_PROCID=0 "$@"; code=$?
wait $other && exit $code
"""


@system
def test_the_job_for_slurm_runs_with_stand_ins_for_its_commands(tmp_path: Path) -> None:
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "my.yaml").write_text(LONG.replace("nodes: 2", "nodes: 8").replace("epochs: 1000000", "steps: 3"))
    make_key_file(tmp_path / "ring.key")
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHON": sys.executable,
        "SLURM_JOB_NODELIST": "here",
        "SLURM_NTASKS": "2",
        "MASTER_PORT": str(own_ports(1)[0]),
        "OMP_NUM_THREADS": "1",
    }
    ran = subprocess.run(
        [str(DEPLOY / "slurm.sh"), "my.yaml"],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    assert "ringwide: rank 0 of 2, from Slurm" in ran.stderr
    assert "all nodes hold the same parameters, to the bit" in ran.stdout


def test_the_image_gets_what_the_package_is_built_from() -> None:
    """It cannot be built where there is no registry of images; what it copies can be looked at."""
    copied = set()
    for words in re.findall(r"^COPY (.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE):
        copied |= set(words.split())
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built_from = {
        "pyproject.toml",
        project["project"]["readme"],
        *project["project"]["license-files"],
        *project["tool"]["setuptools"]["packages"]["find"]["where"],
    }
    assert copied == {*built_from, "constraints.txt"}
    extras = re.findall(r"'\.\[(.*)\]'", (DEPLOY / "Dockerfile").read_text())[0].split(",")
    assert set(extras) <= set(project["project"]["optional-dependencies"])
