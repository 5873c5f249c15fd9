"""Ranks that others have started: torchrun itself, and the variables that srun and mpirun set."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ringwide.experiment.find_peers import free_ports
from system.test_commands import CRASHES_ONCE, WITH_CHECKPOINTS

pytestmark = pytest.mark.system

SECONDS = 110
SPOKEN_FOR = ("RINGWIDE_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
EXPERIMENT = (
    "name: t\nnodes: 2\ntraining: {hidden_sizes: [8], batch_size: 300, steps: 2}\nreport: {html: false}\n"
    "sweep: {ring.lanes: [1, 2]}\n"
)


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(SPOKEN_FOR)} | more


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    try:
        out, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return process.returncode, out, errors


def started(command: list[str], directory: Path, **more: str) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=directory, env=environment(**more), stdout=pipe, stderr=pipe, text=True)


def test_torchrun_starts_a_ring(tmp_path: Path) -> None:
    check = ["-m", "ringwide.node", "--sizes", "4KiB", "--seconds-per-size", "0"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", *check]
    code, out, errors = ended(started(torchrun, tmp_path))
    assert code == 0, errors
    for rank in range(3):
        assert f"rank {rank} of 3: 13 all-reduces checked, all right" in out
    assert errors.count("ringwide: rank ") == 1
    assert "ringwide: rank 0 of 3, from torchrun (RANK, WORLD_SIZE; meeting at " in errors


def test_what_torchrun_starts_anew_goes_on_from_its_checkpoint_and_from_no_other(tmp_path: Path) -> None:
    """A run of yesterday with the same name is not this one's, however complete its checkpoint is."""
    (tmp_path / "mine.py").write_text(CRASHES_ONCE)
    (tmp_path / "c.yaml").write_text(WITH_CHECKPOINTS)
    old = tmp_path / "runs" / "c-20200101-000000" / "checkpoints" / "step-000000019.pt"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"of another run")
    os.utime(old, (1e9, 1e9))
    node = ["--nproc-per-node", "2", "-m", "ringwide.node", "--config", "c.yaml"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1", *node]
    code, out, errors = ended(started(torchrun, tmp_path))
    assert code == 0, errors
    _, _, second = sorted((tmp_path / "runs").iterdir())
    assert json.loads((second / "results.json").read_text())["plan"]["first_step"] == 11
    assert "all nodes hold the same parameters" in out


def test_ranks_of_srun_meet_where_rank_0_is_and_train(tmp_path: Path) -> None:
    """Twice, as there are two variants: the second ring does not find the addresses of the first."""
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1, random.Random())[0])}
    node = [sys.executable, "-m", "ringwide.node", "--config", "e.yaml"]
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    nodes = [started(node, tmp_path, SLURM_PROCID=str(rank), **step, **meeting) for rank in (1, 0)]
    (code, silence, errors), (first_code, out, first_errors) = [ended(each) for each in nodes]
    assert (code, first_code) == (0, 0), errors + first_errors
    assert silence == ""
    assert out.count("all nodes hold the same parameters") == 2
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert "rank 0 of 2, from Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS; meeting at 127.0.0.1:" in first_errors


def test_a_mistake_is_told_by_every_rank_of_mpirun(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    node = [sys.executable, "-m", "ringwide.node", "--config", "e.yaml"]
    world = {"OMPI_COMM_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for each in [started(node, tmp_path, OMPI_COMM_WORLD_RANK=str(rank), **world) for rank in range(3)]:
        code, _, errors = ended(each)
        assert code == 2
        *_, error = errors.splitlines()
        assert error == (
            "ringwide: error: e.yaml: nodes: 2: but OMPI_COMM_WORLD_SIZE is 3; make them equal, as with --set nodes=3"
        )
