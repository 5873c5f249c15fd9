"""Trainer, Accelerate and Lightning on two ranks: the group is ringwide's, the numbers are those that gloo gives."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from integrations.library_cases import WATCHDOG_SECONDS, path_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIBRARIES = ("accelerate", "transformers", "lightning")
RING = "ringwide.torch.process_group.RingProcessGroup"


@cache
def cases_of(library: str) -> list[str]:
    """Names in its CASES, read from the source: to import it takes the library."""
    tree = ast.parse((HERE / f"{library}_cases.py").read_text())
    (cases,) = (node.value for node in tree.body if isinstance(node, ast.AnnAssign))
    assert isinstance(cases, ast.DictComp)
    return [name.id for name in ast.walk(cases.generators[0].iter) if isinstance(name, ast.Name)]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory with what the ranks have written down about all cases of a library. They are played once."""
    return cache(lambda library: play(library, tmp_path_factory.mktemp(library)))


def play(library: str, directory: Path) -> Path:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = subprocess.run(
        [*torchrun, "-m", "tests.integrations.library_cases", library, str(directory)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=WATCHDOG_SECONDS + 60,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))},
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-5000:]
    return directory


@pytest.mark.integrations
@pytest.mark.timeout(2 * WATCHDOG_SECONDS)
@pytest.mark.parametrize(("library", "case"), [(library, case) for library in LIBRARIES for case in cases_of(library)])
def test_a_case_ends_as_with_gloo(library: str, case: str, played: Callable[[str], Path]) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is installed by `make integrations`")
    directory = played(library)

    def found(backend: str, rank: int) -> Any:
        return torch.load(path_of(directory, case, backend, rank))

    ours = [found("ringwide", rank) for rank in range(2)]
    assert [rank["group"] for rank in ours] == [RING, RING]
    assert torch.equal(ours[0]["parameters"], ours[1]["parameters"])
    for rank in range(2):
        theirs = found("gloo", rank)
        assert theirs["group"] != RING
        torch.testing.assert_close(ours[rank]["parameters"], theirs["parameters"])
        torch.testing.assert_close(ours[rank]["numbers"], theirs["numbers"], rtol=1e-5, atol=1e-6)
