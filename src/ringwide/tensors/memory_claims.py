"""Claims of open calls on the caller's memory: from call to commit, it has one owner.

No other call may write to memory that is claimed, nor read memory that is being written.

Addresses are compared only when a call is opened while others are open. A program that awaits each call before it makes
the next one pays nothing.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ringwide.compression.codecs.base import Array

_WORK_LIMIT = 10_000
"""Work limit of the comparison of two strided arrays, which can take for ever. Beyond it they count as overlapping."""
_COMPARED = 128
"""A new call is compared with the last so many. Only messages can be more, and thousands must not be slow."""


class Span(NamedTuple):
    """The bytes between the first and the last element of a tensor, and its memory as an array."""

    start: int
    stop: int
    array: Array


class Claimant(Protocol):
    """An open call, and the memory of the caller that it uses."""

    def written(self) -> Sequence[Array]:
        """Memory that it will write to."""
        ...

    def read(self) -> Sequence[Array]:
        """Memory that it may read until it is over."""
        ...

    def copied(self) -> Sequence[Array]:
        """Memory that it has read already. No other call may have been writing to it then."""
        ...


class MemoryClaims:
    """The claims of the open calls of one ring."""

    def __init__(self) -> None:
        self.held: dict[Claimant, tuple[list[Span], list[Span]] | None] = {}
        """By open call: the spans that it writes and reads. None: not looked at yet."""

    def open(self, claimant: Claimant) -> bool:
        """Claim the memory of this call. False: another call has some of it."""
        if not self.held:
            self.held[claimant] = None
            return True
        spans = _spans(claimant.written()), _spans(claimant.read())
        if self._in_use(*spans, _spans(claimant.copied())):
            return False
        self.held[claimant] = spans
        return True

    def close(self, claimant: Claimant) -> None:
        self.held.pop(claimant, None)

    def _in_use(self, written: Sequence[Span], read: Sequence[Span], copied: Sequence[Span]) -> bool:
        if not (written or read or copied):
            return False
        others = [self._spans_of(other) for other in list(self.held)[-_COMPARED:]]
        theirs_written = [span for other_written, _ in others for span in other_written]
        theirs_read = [span for _, other_read in others for span in other_read]
        return overlap(written, theirs_written + theirs_read) or overlap([*read, *copied], theirs_written)

    def _spans_of(self, claimant: Claimant) -> tuple[list[Span], list[Span]]:
        spans = self.held.get(claimant)
        if spans is None:
            spans = self.held[claimant] = _spans(claimant.written()), _spans(claimant.read())
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
    """Whether a span of the first and a span of the second share an element."""
    if not some or not others:
        return False
    marked = sorted([*((span, True) for span in some), *((span, False) for span in others)], key=lambda one: one[0][:2])
    near: list[tuple[Span, bool]] = []  # spans that reach beyond the current start
    for span, mine in marked:
        near = [one for one in near if one[0].stop > span.start]
        if any(other_is_mine != mine and _share(span.array, other.array) for other, other_is_mine in near):
            return True
        near.append((span, mine))
    return False


def overlap_within(arrays: Iterable[Array]) -> bool:
    """Whether two of these arrays share an element."""
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
