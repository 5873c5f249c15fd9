"""The Python of a document, and how each piece of it says that it is run.

A comment before the piece tells: `<!-- run: torchrun 2 -->`, `<!-- run: python -->`, or `<!-- run: python 2 -->` for
two processes with their rank as argument; `, needs NAME` if it needs what only `make integrations` installs. A block of
text after it is what rank 0 prints; if it needs a project, which prints too, it is a part of that.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_PIECE = re.compile(
    r"(?:<!-- run: (?P<launcher>python|torchrun)(?: (?P<ranks>\d))?(?:, needs (?P<needs>\w+))? -->\n)?"
    r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Snippet:
    """One piece. Without a launcher nobody has said how to run it."""

    name: str
    launcher: str | None
    ranks: int
    needs: str | None
    code: str
    printed: str | None

    def write_to(self, directory: Path) -> Path:
        path = directory / f"{self.name}.py"
        path.write_text(self.code)
        return path


def snippets_of(document: Path) -> list[Snippet]:
    text = document.read_text()
    return [_snippet(found, text) for found in _PIECE.finditer(text)]


def _snippet(found: re.Match[str], text: str) -> Snippet:
    line = text.count("\n", 0, found.start("code")) + 1
    section = re.findall(r"^## (.*)$", text[: found.start()], re.MULTILINE)[-1]
    name = re.sub(r"\W+", "-", f"{section} line {line}".lower())
    return Snippet(name, found["launcher"], int(found["ranks"] or 1), found["needs"], found["code"], found["printed"])
