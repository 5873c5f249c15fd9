"""What the documents say is true: the README's example runs as printed, its figures are those that were measured."""

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.speed import tables as speed

from bench import (
    accuracy,
    backend,
    blocking,
    codecs_report,
    figures,
    logging,
    nonfinite,
    protection,
    same_host,
    training,
)
from ringwide.config.ring_config import RingConfig
from ringwide.config.validation import settings_table

ROOT = Path(__file__).parent.parent


def test_every_setting_is_in_the_documents() -> None:
    assert settings_table(RingConfig) in (ROOT / "docs" / "settings.md").read_text()


@pytest.mark.parametrize(
    ("result", "markdown", "document"),
    [
        ("speed", speed.readme, "README.md"),
        ("codecs", codecs_report.markdown, "docs/codecs.md"),
        ("accuracy", accuracy.markdown, "docs/codecs.md"),
        ("training", training.markdown, "README.md"),
        ("logging", logging.markdown, "docs/performance.md"),
        ("protection", protection.markdown, "docs/performance.md"),
        ("nonfinite", nonfinite.markdown, "docs/performance.md"),
        ("backend", backend.markdown, "README.md"),
        ("blocking", blocking.markdown, "docs/performance.md"),
        ("same_host", same_host.markdown, "docs/performance.md"),
    ],
)
def test_the_figures_are_those_of_the_last_saved_benchmark(
    result: str, markdown: Callable[[Any], str], document: str
) -> None:
    report = json.loads((ROOT / "bench" / "results" / f"{result}.json").read_text())
    assert markdown(report) in (ROOT / document).read_text()


def test_the_document_of_figures_is_made_of_the_results() -> None:
    assert figures.document() == figures.DOCUMENT.read_text(), "run `python -m bench figures`"


@pytest.mark.parametrize(
    "document", ["README.md", "SECURITY.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert [target for target in targets if not ((ROOT / document).parent / target).exists()] == []


@pytest.mark.system
async def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(next(example for example in examples if "asyncio.run" in example))
    ranks = [
        await asyncio.create_subprocess_exec(
            sys.executable, "example.py", str(rank), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        for rank in range(2)
    ]
    async with asyncio.timeout(110):
        outputs = [(await process.communicate())[0].decode() for process in ranks]
    assert outputs == ["rank 0 of 2: 0.5\n", "rank 1 of 2: 0.5\n"]
