"""Nodes that a real mpirun starts: Open MPI, as it comes from PyPI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from local_ring import free_peers

MPIRUN = Path(sys.executable).parent / "mpirun"
RANKS = 3

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not MPIRUN.exists(), reason="Open MPI is not installed"),
]


def mpirun(*options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [str(MPIRUN), "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS)]
    node = [sys.executable, "-m", "ringwide.node", "--sizes", "4KiB", "--seconds-per-size", "0.01", *options]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    return subprocess.run(
        [*command, *node], capture_output=True, text=True, timeout=300, env={**inherited, **environment}
    )


def test_ranks_come_from_mpirun_and_addresses_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "peers.txt").write_text("\n".join(free_peers(RANKS)))
    check(mpirun("--peers", str(tmp_path / "peers.txt")))


def test_ranks_meet_where_rank_0_is() -> None:
    host, _, port = free_peers(1)[0].rpartition(":")
    ran = mpirun(MASTER_ADDR=host, MASTER_PORT=port)
    check(ran)
    assert "from Open MPI" in ran.stderr


def check(ran: "subprocess.CompletedProcess[str]") -> None:
    assert ran.returncode == 0, ran.stderr
    for rank in range(RANKS):
        assert f"rank {rank} of {RANKS}: 13 all-reduces checked, all right" in ran.stdout


def test_who_is_told_no_address_says_so() -> None:
    ran = mpirun()
    assert ran.returncode == 2
    assert "set MASTER_ADDR and MASTER_PORT" in ran.stderr
    assert "Traceback" not in ran.stderr
