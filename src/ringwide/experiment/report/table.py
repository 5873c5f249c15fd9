"""A table is cells of text. Markdown, plain text and the page all show these same cells."""

from collections.abc import Sequence
from dataclasses import dataclass

MARKDOWN_MEANS_SOMETHING = "\\`*[]<>|"


@dataclass(frozen=True, slots=True)
class Table:
    """The first `texts` columns are words, set flush left; the others are figures, set flush right."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    texts: int = 1
    links: tuple[str, ...] = ()  # where the first cell of each row leads to, if anywhere

    def link(self, row: int) -> str:
        return self.links[row] if row < len(self.links) else ""


def markdown(table: Table) -> str:
    rows = [_markdown_row(table, number) for number in range(len(table.rows))]
    marks = ["---"] * table.texts + ["--:"] * (len(table.heads) - table.texts)
    lines = [f"## {as_markdown(table.title)}", "", _piped([as_markdown(head) for head in table.heads]), _piped(marks)]
    note = ["", as_markdown(table.note)] if table.note else []
    return "\n".join([*lines, *rows, *note]) + "\n"


def text(table: Table) -> str:
    lines = [table.heads, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.heads))]
    return "\n".join(_aligned(line, widths, table.texts) for line in lines)


def as_markdown(words: str) -> str:
    """Words that stay words: no cell can end its row, start a link or become HTML."""
    return "".join(f"\\{mark}" if mark in MARKDOWN_MEANS_SOMETHING else mark for mark in " ".join(words.split()))


def _markdown_row(table: Table, number: int) -> str:
    first, *rest = [as_markdown(cell) for cell in table.rows[number]]
    link = table.link(number)
    return _piped([f"[{first}](<{link}>)" if link else first, *rest])


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _aligned(cells: Sequence[str], widths: Sequence[int], texts: int) -> str:
    words = [cell.ljust(width) for cell, width in zip(cells[:texts], widths[:texts], strict=True)]
    figures = [cell.rjust(width) for cell, width in zip(cells[texts:], widths[texts:], strict=True)]
    return "  ".join([*words, *figures]).rstrip()
