"""Every program in examples/ runs. Those that need other projects, and DDP, are run in tests/integrations/."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from local_ring import free_peers

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*.py"))
RUN_BY = [Path(__file__), *sorted((ROOT / "tests" / "integrations").glob("test_*.py"))]
PATIENCE_SECONDS = 110


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_begins_with_its_command_and_is_known(example: str) -> None:
    told = (ast.get_docstring(ast.parse((ROOT / example).read_text())) or "").splitlines()
    commands = [line for line in told if re.match(r"(python|torchrun) ", line)]
    assert len(commands) == 1, told
    named = re.findall(r"examples/[\w/]+\.\w+", commands[0])
    assert named
    assert {Path(name).with_suffix("") for name in named} == {Path(example).with_suffix("")}
    assert all((ROOT / name).is_file() for name in named)
    assert any(Path(example).stem in path.read_text() for path in RUN_BY), "no test runs it"
    assert commands[0] in (ROOT / "README.md").read_text(), "the README does not list it"


def run_two_ranks(example: str, directory: Path) -> list[list[str]]:
    """What each rank prints, by lines."""
    peers = free_peers(2)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / example), str(rank), *peers],
            cwd=directory,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=PATIENCE_SECONDS)[0].splitlines() for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], printed
    return printed


@pytest.mark.system
def test_asyncio(tmp_path: Path) -> None:
    assert run_two_ranks("overlapping_calls.py", tmp_path) == [
        [
            f"rank {rank} of 2: [0.5, 1.5, 2.5, 3.5]",
            f"rank {rank} of 2: CollectiveMismatch with rank {1 - rank}",
        ]
        for rank in range(2)
    ]


@pytest.mark.system
def test_numpy_without_torch(tmp_path: Path) -> None:
    first, second = run_two_ranks("numpy_regression.py", tmp_path)
    assert first == ["rank 0 of 2: 3.01 x + 1.99, torch is loaded: False"]
    assert second == [first[0].replace("rank 0", "rank 1")]


@pytest.mark.system
def test_a_model_of_your_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ringwide", "run", str(ROOT / "examples" / "own_model" / "rings.yaml")]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ran.returncode == 0, ran.stderr
    assert "all nodes hold the same parameters, to the bit" in ran.stdout
    accuracy = re.search(r"test accuracy (\d+\.\d) %", ran.stdout)
    assert accuracy, ran.stdout
    assert float(accuracy[1]) > 98
