"""What a rank writes down of every call: one JSON object a line, whole or not at all."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RETURNED = "returned"


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of one rank. `before` and `after` are digests of the tensor that was given to it."""

    run: str
    rank: int
    members: tuple[int, ...]
    call: int  # as the harness numbers them; the first is 0
    weight: int
    kind: str
    count: int
    dtype: str
    op: str
    before: str
    after: str
    outcome: str  # returned, or the name of the error
    words: str  # of the error
    lost: int | None  # the rank that the error names
    begun: float
    ended: float

    @property
    def returned(self) -> bool:
        return self.outcome == RETURNED

    @property
    def what(self) -> tuple[str, int, str, str]:
        return self.kind, self.count, self.dtype, self.op


@dataclass(slots=True)
class Book:
    """The history of one process, written line by line, so that a process that is killed leaves what it had seen."""

    path: Path

    def write(self, entry: Entry) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")


@dataclass(slots=True)
class BufferPool:
    """The books of all processes, read as they grow."""

    directory: Path
    _read: dict[Path, int] = field(default_factory=dict)
    _entries: dict[str, list[Entry]] = field(default_factory=dict)

    def take(self, run: str) -> list[Entry]:
        """All that was written of this run; asked once, when the run is over."""
        for entry in self.news():
            self._entries.setdefault(entry.run, []).append(entry)
        return self._entries.pop(run, [])

    def news(self) -> Iterator[Entry]:
        """All that was written since this was asked last."""
        for path in sorted(self.directory.glob("*.jsonl")):
            yield from self._news_of(path)

    def _news_of(self, path: Path) -> Iterator[Entry]:
        start = self._read.get(path, 0)
        if path.stat().st_size <= start:
            return
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # a process that was killed may have left half a line
        self._read[path] = start + len(whole)
        yield from (as_entry(json.loads(line)) for line in whole.splitlines())


def as_entry(fields: dict[str, Any]) -> Entry:
    return Entry(**{**fields, "members": tuple(fields["members"])})
