"""Error feedback: the error of a lossy codec is added to the same bucket's next numbers.

Every rank encodes every segment of an all-reduce exactly once: its own numbers where the segment starts, a partial sum
on the way, or the total at its owner. So each rank keeps one error for each element, and nothing is counted twice. (In
a reduce-scatter the owner does not send the total, so its error is zero there.)

Rules:
- An error belongs to a bucket, identified by the name that the caller gave it, or else by the tensors' names, dtypes
  and shapes.
- A failed collective leaves the errors as they were. That is why there are two arrays, the last error and the next.
- When a named bucket comes back with other shapes, its error is dropped, and a line in the log says so.
- An error that has not been used for `FORGOTTEN_AFTER` calls is dropped, as its bucket will hardly come back. One that
  was used only once is dropped sooner, as its shapes may never repeat.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.tensors.bucket import Label

logger = logging.getLogger("ringwide.compression")

FORGOTTEN_AFTER, ONCE_FORGOTTEN_AFTER = 1000, 64


@dataclass(slots=True)
class Feedback:
    """The error of one bucket while a collective runs."""

    label: Label
    last: Array
    next: Array


@dataclass(slots=True)
class _Kept:
    what: str
    error: Array
    used: int = 0
    times: int = 0
    spare: Array | None = None  # memory for the next error


class FeedbackStore:
    """The errors of all buckets of one rank."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}  # the least recently used comes first
        self._lent: set[str] = set()
        self._calls = 0
        self._warned: set[str] = set()

    def __contains__(self, label: Label) -> bool:
        return label.name in self._kept

    def borrow(self, label: Label, count: int, dtype: np.dtype[Any]) -> Feedback | None:
        """The error of a bucket, zero at first. None: another call of the same bucket is open and has it."""
        self._forget_old()
        if label.name in self._lent:
            self._warn_once(label)
            return None
        kept = self._find(label, count, dtype)
        self._lent.add(label.name)
        spare, kept.spare = kept.spare, None
        return Feedback(label, kept.error, np.empty_like(kept.error) if spare is None else spare)

    def commit(self, feedback: Feedback) -> None:
        """The collective has succeeded: keep its next error."""
        self._lent.discard(feedback.label.name)
        if kept := self._still_kept(feedback):
            kept.error, kept.spare = feedback.next, feedback.last

    def undo(self, feedback: Feedback) -> None:
        """Return to the last error, because the result of a successful collective is not used."""
        kept = self._kept.get(feedback.label.name)
        if kept is not None and kept.error is feedback.next:
            kept.error, kept.spare = feedback.last, feedback.next

    def give_back(self, feedback: Feedback) -> None:
        """The collective has failed: keep its last error. A thread may still write to the next one."""
        self._lent.discard(feedback.label.name)

    def drop(self, feedback: Feedback) -> None:
        """The error was added in full, and there is no new one."""
        self._lent.discard(feedback.label.name)
        if self._still_kept(feedback):
            del self._kept[feedback.label.name]

    def items(self) -> Iterator[tuple[Label, Array]]:
        """All errors, for a checkpoint."""
        return ((Label(name, kept.what), kept.error) for name, kept in self._kept.items())

    def replace(self, errors: Mapping[Label, Array]) -> None:
        """Replace all errors, by those of a checkpoint."""
        self._kept = {label.name: _Kept(label.what, error, self._calls, times=2) for label, error in errors.items()}

    def _still_kept(self, feedback: Feedback) -> _Kept | None:
        """None: the error was replaced while it was lent, and the replacement stays."""
        kept = self._kept.get(feedback.label.name)
        return kept if kept is not None and kept.error is feedback.last else None

    def _find(self, label: Label, count: int, dtype: np.dtype[Any]) -> _Kept:
        kept = self._kept.pop(label.name, None)
        if kept is not None and (kept.what, kept.error.size, kept.error.dtype) != (label.what, count, dtype):
            logger.warning(
                "bucket %r was %s and is now %s: the error of its codec so far is dropped",
                label.name,
                kept.what,
                label.what,
            )
            kept = None
        if kept is None:
            kept = _Kept(label.what, np.zeros(count, dtype))
        kept.used = self._calls
        kept.times += 1
        self._kept[label.name] = kept
        return kept

    def _forget_old(self) -> None:
        self._calls += 1
        for name in [name for name, kept in self._kept.items() if self._is_forgotten(kept) and name not in self._lent]:
            del self._kept[name]

    def _is_forgotten(self, kept: _Kept) -> bool:
        return self._calls - kept.used > (FORGOTTEN_AFTER if kept.times > 1 else ONCE_FORGOTTEN_AFTER)

    def _warn_once(self, label: Label) -> None:
        if label.name not in self._warned:
            self._warned.add(label.name)
            logger.warning(
                "two open calls have %s; only the first has error feedback: tell them apart by "
                "allreduce(..., bucket='a name')",
                label.what,
            )
