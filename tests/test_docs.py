"""What the documents say is true: examples run as printed, figures were measured, paths and names exist."""

import ast
import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench.speed import tables as speed

import ringwide
import ringwide.torch
from bench import (
    accuracy,
    backend,
    blocking,
    codecs_report,
    figures,
    halves,
    logging,
    nonfinite,
    protection,
    same_host,
    training,
)
from ringwide.config.ring_config import RingConfig
from ringwide.config.validation import settings_table

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ringwide"
DOCUMENTS = [
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
]


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
        ("backend", backend.markdown, "docs/performance.md"),
        ("blocking", blocking.markdown, "docs/performance.md"),
        ("same_host", same_host.markdown, "docs/performance.md"),
        ("halves", halves.markdown, "docs/performance.md"),
    ],
)
def test_the_figures_are_those_of_the_last_saved_benchmark(
    result: str, markdown: Callable[[Any], str], document: str
) -> None:
    report = json.loads((ROOT / "bench" / "results" / f"{result}.json").read_text())
    assert markdown(report) in (ROOT / document).read_text()


def test_the_document_of_figures_is_made_of_the_results() -> None:
    assert figures.document() == figures.DOCUMENT.read_text(), "run `python -m bench figures`"


@pytest.mark.parametrize("document", DOCUMENTS)
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


# The site


def nav_entries(entry: object) -> Iterator[str]:
    match entry:
        case str():
            yield entry
        case list():
            for one in entry:
                yield from nav_entries(one)
        case dict():
            for one in entry.values():
                yield from nav_entries(one)


def generated_pages() -> set[str]:
    """Pages of the site that the hook makes of files elsewhere."""
    hook = ast.parse((ROOT / "docs" / "hooks" / "root_pages.py").read_text())
    values = {ast.unparse(node.targets[0]): node.value for node in hook.body if isinstance(node, ast.Assign)}
    root_pages = ast.literal_eval(values["ROOT_PAGES"])
    assert [source for source in root_pages if not (ROOT / source).is_file()] == []
    return {*root_pages.values(), ast.literal_eval(values["DECISIONS"])}


def test_the_site_has_every_page_once() -> None:
    entries = list(nav_entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(entries) == sorted(pages | generated_pages())


def test_the_page_of_the_api_has_every_public_name() -> None:
    told = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    homes = {name: module for name, module in ringwide._HOME.items() if module != "ringwide.errors"}
    hooks = [getattr(ringwide.torch, name) for name in ringwide.torch.__all__]
    names = {f"{module}.{name}" for name, module in homes.items()} | {
        f"{one.__module__}.{one.__name__}" for one in hooks
    }
    assert {"ringwide.errors", *names} - set(told) == {"ringwide.config.ring_config.RingConfig"}  # it has a table


# Paths and names


USERS_FILES = {"example.py", "mine.py", "train.py", "checkpoints/", "runs/NAME-TIME/"}
"""Paths of a reader's own files, or of what a run leaves behind."""
FOREIGN_NAMES = {
    *("Accelerator", "CancelledError", "DDPStrategy", "DeviceMesh", "RuntimeError", "RuntimeWarning", "TypeError"),
    *("Backend", "ProcessGroup"),  # of torch.distributed
    *(
        "Embedding",
        "InitProcessGroupKwargs",
        "TorchConfig",
        "TrainingArguments",
    ),  # of torch, Accelerate, Ray, transformers
}
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)*/?")
_COMMAND_PATH = re.compile(r"(?<![\w./-])(?:src|tests|bench|docs|configs|examples)/[\w.*/@-]*\w")
_NAME = re.compile(r"(?=\w*[a-z])[A-Z]\w*(\.\w+)?")
_DOTTED = re.compile(r"ringwide(\.\w+)+")


def quoted(document: str) -> list[str]:
    """What stands in backticks, but for whole blocks. An argument list is cut off: `Ring.send(...)`."""
    prose = _FENCE.sub("", (ROOT / document).read_text())
    return [text.partition("(")[0].strip() for text in re.findall(r"`([^`\n]+)`", prose)]


def paths_in(document: str) -> Iterator[str]:
    """Whatever is written as a path of this repository. A test in it, `path::name`, is looked for, too."""
    for text in quoted(document):
        path = text.partition("::")[0]
        is_named = "/" in path and (
            path.endswith("/") or Path(path).suffix in {".md", ".yaml", ".json", ".toml", ".svg"}
        )
        if _PATH.fullmatch(path) and (is_named or path.endswith(".py") or _COMMAND_PATH.fullmatch(path)):
            yield text
    for block in _FENCE.findall((ROOT / document).read_text()):
        yield from _COMMAND_PATH.findall(block)


def exists(text: str) -> bool:
    path, _, test = text.partition("::")
    found = [*ROOT.glob(path.rstrip("/")), *SOURCE.glob(path.rstrip("/"))]
    return any(not test or f"def {test}(" in one.read_text() for one in found)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_exists(document: str) -> None:
    missing = [path for path in paths_in(document) if path not in USERS_FILES and not exists(path)]
    assert missing == []


@cache
def members_of_classes() -> dict[str, set[str]]:
    """By class, the names that it or one of its bases defines. Classes of the same name are one here."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for folder in (SOURCE, ROOT / "tests", ROOT / "bench"):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    own.setdefault(node.name, set()).update(_names_in(node))
                    bases.setdefault(node.name, set()).update(
                        ast.unparse(base).rpartition(".")[2] for base in node.bases
                    )
    return {name: set().union(*(own.get(one, set()) for one in _with_bases(name, bases))) for name in own}


def _names_in(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(value=ast.Name(id="self"), attr=name):
                yield name


def _with_bases(name: str, bases: dict[str, set[str]]) -> set[str]:
    found, open_ = set[str](), {name}
    while open_:
        found |= open_
        open_ = set[str]().union(*(bases.get(one, set()) for one in open_)) - found
    return found


def is_defined(name: str) -> bool:
    """Is there such a class, and has it such a member?"""
    owner, _, member = name.partition(".")
    members = members_of_classes()
    return owner in FOREIGN_NAMES or (owner in members and (not member or member in members[owner]))


def is_importable(name: str) -> bool:
    """`ringwide.room.name`: is there such a room or module, and does the name that is left stand in it?"""
    parts = name.split(".")[1:]
    place = SOURCE
    while parts and ((place / parts[0]).is_dir() or (place / f"{parts[0]}.py").is_file()):
        place = place / parts.pop(0)
    module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return not parts or re.search(rf"\b{parts[0]}\b", module.read_text()) is not None


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_name_exists(document: str) -> None:
    names = [text for text in quoted(document) if _NAME.fullmatch(text) and not is_defined(text)]
    names += [text for text in quoted(document) if _DOTTED.fullmatch(text) and not is_importable(text)]
    assert names == []
