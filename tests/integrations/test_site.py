"""The site of `make docs` is built without a warning, and loads nothing from a network."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 110

pytestmark = pytest.mark.integrations


def build(source: Path, site: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def test_the_site(tmp_path: Path) -> None:
    built = build(ROOT, tmp_path)
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    loaded = {name: re.findall(r'(?:src=|<link[^>]* href=)"(?:https?:)?//[^"]*', text) for name, text in pages.items()}
    assert {name: found for name, found in loaded.items() if found} == {}
    assert "Replace every tensor by its mean over all ranks" in pages["api.html"]
    assert 'href="../security.html"' in pages["start/machines.html"]
    assert 'href="files/configs/int8.yaml"' in pages["experiments.html"]
    assert (tmp_path / "files/configs/int8.yaml").read_text() == (ROOT / "configs/int8.yaml").read_text()


@pytest.mark.parametrize("link", ["[x](nowhere.md)", "[x](codecs.md#nowhere)", "[x](../nowhere.py)"])
def test_a_link_that_leads_nowhere_is_an_error(link: str, tmp_path: Path) -> None:
    for name in ("docs", "configs", "src"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("mkdocs.yml", "README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    page = tmp_path / "docs" / "ordering.md"
    page.write_text(f"{page.read_text()}\n{link}\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    assert "nowhere" in built.stderr
