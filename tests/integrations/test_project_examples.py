"""Examples for other projects are the programs of docs/integrations.md, line by line, and run as files of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integrations.snippets import snippets_of

ROOT = Path(__file__).parents[2]
EXAMPLES = {"lightning": "regression_lightning.py", "transformers": "llama_trainer.py"}
LAUNCHERS = {
    "lightning": [sys.executable],
    "transformers": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
}
PATIENCE_SECONDS = 240


@pytest.mark.parametrize("project", EXAMPLES)
def test_the_document_and_the_example_are_the_same_program(project: str) -> None:
    [snippet] = [one for one in snippets_of(ROOT / "docs" / "integrations.md") if one.needs == project]
    docstring, program = (ROOT / "examples" / EXAMPLES[project]).read_text().split('\n"""\n\n', 1)
    assert program == snippet.code
    assert docstring.endswith(f"examples/{EXAMPLES[project]}")


@pytest.mark.integrations
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
@pytest.mark.parametrize("project", EXAMPLES)
def test_an_example_runs(project: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [*LAUNCHERS[project], str(ROOT / "examples" / EXAMPLES[project])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-5000:]
    assert "DistributedDataParallel on ringwide\n" in ran.stdout
