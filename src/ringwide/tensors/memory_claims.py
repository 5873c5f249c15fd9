"""The memory of open calls: from call to commit it has one owner.

No other call may write there, nor read what is written.

Addresses are only looked at when a second call is opened beside others. A program that awaits each call before it
makes the next one pays nothing for them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ringwide.compression.codecs.base import Array

_WORK_LIMIT = 10_000
"""Whether two strided arrays really share an element can take for ever to find out: then they are said to."""


_COMPARED = 128
"""With so many, those opened last. Only messages can be more, and thousands of them must not be slow."""


class Span(NamedTuple):
    """The bytes between the first and the last element of a tensor, and its memory as an array."""

    start: int
    stop: int
    array: Array


class Occupant(Protocol):
    """What an open call has of the caller's."""

    def written(self) -> Sequence[Array]:
        """The caller's memory that it will write to."""
        ...

    def read(self) -> Sequence[Array]:
        """The caller's memory that it reads, or may read, until it is over."""
        ...

    def copied(self) -> Sequence[Array]:
        """The caller's memory that it has read already: it must not have been in the middle of something."""
        ...


class MemoryClaims:
    """What the open calls of one ring occupy."""

    def __init__(self) -> None:
        self.held: dict[Occupant, tuple[list[Span], list[Span]] | None] = {}
        """By open call: what it writes and what it reads, if anybody has looked."""

    def open(self, occupant: Occupant) -> bool:
        """Take what this call needs. False: another one has some of it."""
        if not self.held:
            self.held[occupant] = None
            return True
        spans = _spans(occupant.written()), _spans(occupant.read())
        if self._in_use(*spans, _spans(occupant.copied())):
            return False
        self.held[occupant] = spans
        return True

    def close(self, occupant: Occupant) -> None:
        self.held.pop(occupant, None)

    def _in_use(self, written: Sequence[Span], read: Sequence[Span], copied: Sequence[Span]) -> bool:
        if not (written or read or copied):
            return False
        others = [self._spans_of(other) for other in list(self.held)[-_COMPARED:]]
        theirs_written = [span for other_written, _ in others for span in other_written]
        theirs_read = [span for _, other_read in others for span in other_read]
        return overlap(written, theirs_written + theirs_read) or overlap([*read, *copied], theirs_written)

    def _spans_of(self, occupant: Occupant) -> tuple[list[Span], list[Span]]:
        spans = self.held.get(occupant)
        if spans is None:
            spans = self.held[occupant] = _spans(occupant.written()), _spans(occupant.read())
        return spans


def _spans(arrays: Iterable[Array]) -> list[Span]:
    return [_span_of(array) for array in arrays if array.size]


def _span_of(array: Array) -> Span:
    start: int = array.__array_interface__["data"][0]
    if array.flags.c_contiguous:
        return Span(start, start + array.nbytes, array)
    reaches = [stride * (length - 1) for stride, length in zip(array.strides, array.shape, strict=True)]
    backward = sum(reach for reach in reaches if reach < 0)
    forward = sum(reach for reach in reaches if reach > 0)
    return Span(start + backward, start + forward + array.itemsize, array)


def overlap(some: Sequence[Span], others: Sequence[Span]) -> bool:
    """Is there an element that is in one of each?"""
    if not some or not others:
        return False
    marked = sorted([*((span, True) for span in some), *((span, False) for span in others)], key=lambda one: one[0][:2])
    near: list[tuple[Span, bool]] = []  # those that reach beyond where we are
    for span, mine in marked:
        near = [one for one in near if one[0].stop > span.start]
        if any(other_is_mine != mine and _share(span.array, other.array) for other, other_is_mine in near):
            return True
        near.append((span, mine))
    return False


def overlap_within(arrays: Iterable[Array]) -> bool:
    """Do two of these share an element?"""
    near: list[Span] = []
    for span in sorted(_spans(arrays), key=lambda one: one[:2]):
        near = [one for one in near if one.stop > span.start]
        if any(_share(span.array, other.array) for other in near):
            return True
        near.append(span)
    return False


def _share(one: Array, other: Array) -> bool:
    try:
        return np.shares_memory(one, other, max_work=_WORK_LIMIT)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
