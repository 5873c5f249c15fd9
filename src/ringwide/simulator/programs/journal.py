"""The journal of one rank: of each call what it brought, how it ended, and what its memory held then and in the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.errors import CollectiveAborted, PeerLost, RingwideError


@dataclass(frozen=True, slots=True)
class CallEnding:
    """How a call ended: with its result, or with an error, of which only plain facts are kept."""

    result: tuple[Array, ...] = ()
    error: str = ""  # its class
    typed: bool = False  # one of ours
    rank: int = -1  # whom it names
    text: str = ""

    def __str__(self) -> str:
        return f"{self.error}: {self.text}" if self.error else "its result"


def ending_of(outcome: object) -> CallEnding:
    """From what an await has returned or raised."""
    if not isinstance(outcome, BaseException):
        return CallEnding(_copied(_arrays_in(outcome)))
    rank = -1
    if isinstance(outcome, CollectiveAborted):
        rank = outcome.by
    elif isinstance(outcome, PeerLost):
        rank = outcome.rank
    return CallEnding((), type(outcome).__name__, isinstance(outcome, RingwideError), rank, str(outcome))


@dataclass(slots=True)
class JournalEntry:
    """One call of one rank. `memory` is the caller's own; the others are copies."""

    memory: list[Array]
    brought: tuple[Array, ...]
    ending: CallEnding | None = None  # None: it was never awaited, or not to its end
    after: tuple[Array, ...] = ()
    last: tuple[Array, ...] = ()


@dataclass(slots=True)
class RankJournal:
    """All calls of one rank, by their index."""

    entries: dict[int, JournalEntry] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    through: bool = False  # the rank has come to the end of the program

    def open(self, index: int, memory: list[Array]) -> None:
        self.entries[index] = JournalEntry(memory, _copied(memory))

    def close(self, index: int, outcome: object) -> None:
        entry = self.entries[index]
        if entry.ending is not None:
            self.complaints.append(f"call {index} ended twice: {entry.ending}, then {ending_of(outcome)}")
        entry.ending, entry.after = ending_of(outcome), _copied(entry.memory)

    def conclude(self) -> None:
        """All is over: what memory holds now, it keeps."""
        for entry in self.entries.values():
            entry.last = _copied(entry.memory)


def _copied(arrays: Sequence[Array]) -> tuple[Array, ...]:
    return tuple([array.copy() for array in arrays])


def _arrays_in(value: Any) -> list[Array]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, list | tuple):
        return [*value]
    return [*value.values()] if isinstance(value, dict) else []
