"""Hook of mkdocs: pages at the root of the repository become pages of the site, and links lead to them.

The Markdown is written for the repository: README.md links to docs/design.md, docs/experiments.md to configs/.
Files that are not pages come along, below `files/`, so that the site is complete without a network.
"""

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
DECISIONS = "decisions/index.md"
_SOURCE_OF = {page: source for source, page in ROOT_PAGES.items()}
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, DECISIONS, content=_decisions()))
    named = {path for file in files if file.is_documentation_page() for path in _files_named_in(file)}
    for path in sorted(named):
        files.append(File.generated(config, f"files/{path}", content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    return _outside_of_fences(markdown, lambda text: _LINK.sub(lambda link: _led(link, page.file.src_uri), text))


def _decisions() -> str:
    """List of all decisions, with the link of each."""
    paths = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    titles = [(path.name, path.read_text().partition("\n")[0].removeprefix("# ")) for path in paths]
    lines = "\n".join(f"- [{title}]({name})" for name, title in titles)
    return f"# Decisions\n\nChoices that somebody will ask about: context, choice, cost.\n\n{lines}\n"


def _outside_of_fences(markdown: str, change: Any) -> str:
    parts = _FENCE.split(markdown)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))


def _repository_path(target: str, page: str) -> str:
    """Path in the repository that a link on a page of the site was written for."""
    source = _SOURCE_OF.get(page, f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _is_page(path: str) -> bool:
    return path in ROOT_PAGES or path.startswith("docs/")


def _files_named_in(file: File) -> set[str]:
    links = _LINK.finditer(_FENCE.sub("", file.content_string))
    paths = {_repository_path(link["target"], file.src_uri) for link in links if _is_local(link["target"])}
    return {path for path in paths if not _is_page(path) and (ROOT / path).is_file()}


def _is_local(target: str) -> bool:
    return bool(target) and "://" not in target and not target.startswith("mailto:")


def _led(link: re.Match[str], page: str) -> str:
    if not _is_local(link["target"]):
        return link[0]
    path = _repository_path(link["target"], page)
    if path in ROOT_PAGES:
        there = ROOT_PAGES[path]
    elif path == "docs/decisions":
        there = DECISIONS
    elif path.startswith("docs/"):
        there = path.removeprefix("docs/")
    elif (ROOT / path).is_file():
        there = f"files/{path}"
    else:  # of a directory only the name is left; what is not there is left to mkdocs, which complains
        return link["text"] if (ROOT / path).is_dir() else link[0]
    return f"[{link['text']}]({os.path.relpath(there, posixpath.dirname(page) or '.')}{link['anchor'] or ''})"
