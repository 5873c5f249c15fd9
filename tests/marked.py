"""Parts of a document that are made from the code: each stands between `<!-- name -->` and `<!-- /name -->`."""

import re
from pathlib import Path

DESIGN = Path(__file__).parents[1] / "docs" / "design.md"


def marked(document: Path, name: str) -> str:
    """What stands between the marks of this name."""
    found = _between(name).search(document.read_text())
    assert found, f"{document.name} has no <!-- {name} --> ... <!-- /{name} -->"
    return found["text"].strip("\n")


def renew(document: Path, name: str, text: str) -> None:
    """Write `text` between the marks of this name."""
    marked(document, name)
    replaced = _between(name).sub(lambda found: f"{found['begin']}\n{text}\n{found['end']}", document.read_text())
    document.write_text(replaced)


def _between(name: str) -> re.Pattern[str]:
    kind = name.partition(":")[0]  # `<!-- files: of something -->` ends with `<!-- /files -->`
    begin, end = re.escape(f"<!-- {name} -->"), re.escape(f"<!-- /{kind} -->")
    return re.compile(f"(?P<begin>{begin})(?P<text>.*?)(?P<end>{end})", re.DOTALL)
