"""Bucket: one rank's numbers as a flat array of one dtype, and how they are combined."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ringwide.compression.codecs.base import Array

Combiner = Callable[[Array, Array, Array], object]
"""combine(left, right, out)"""


@dataclass(frozen=True, slots=True)
class Label:
    """Which bucket it is: `name` finds its error, `what` must still be the same."""

    name: str
    what: str


@dataclass(frozen=True, slots=True)
class BucketShape:
    """A bucket as the plan sees it: how many elements of which type."""

    dtype: str
    count: int
    itemsize: int


class Bucket(NamedTuple):
    """One rank's numbers, and how they are summed.

    `ours` holds this rank's numbers, and segment by segment their totals in the end. What is replaced is first copied
    to `saved`, and comes back if the collective fails; None: nobody will want it back.
    """

    ours: Array
    saved: Array | None
    combine: Combiner
    finish: Callable[[Array], object] | None = None
    weight: float = 0.0
    """By what a sum of floats is divided in the end, 1 for a plain sum. 0: not a sum, so nothing of it may be lost."""
    label: Label | None = None
    """Whose error feedback belongs to it, if it has any."""
    narrow: Callable[[Array], object] | None = None
    """Rounds a finished total to half precision, in place: what it leaves are bits to be moved, not numbers."""

    def complete(self, total: Array) -> None:
        """All that is done once to a total, by its owner."""
        if self.finish is not None:
            self.finish(total)
        if self.narrow is not None:
            self.narrow(total)


def bytes_of(array: Array) -> memoryview:
    return array.data.cast("B") if array.size else memoryview(bytearray())


NOTHING = Bucket(np.empty(0, np.uint8), None, np.add)
"""What a rank brings to a part of a plan that only lets ranks hear of each other."""


# Pool of idle buffers, reused so that a call does not pay for fresh pages.

TOO_SMALL_TO_POOL_BYTES = 128 * 1024
"""Below this the allocator is faster than looking for a free bucket."""


class BufferPool:
    """Buckets that are not in use. Fresh memory costs a page fault every 4 KiB, more than the network on a fast link.

    It never holds more than was once in use at the same time.
    """

    def __init__(self) -> None:
        self._idle: list[Array] = []
        self._in_use_bytes = 0
        self._peak_bytes = 0

    def take(self, count: int, dtype: np.dtype[Any]) -> Array:
        nbytes = count * dtype.itemsize
        if nbytes < TOO_SMALL_TO_POOL_BYTES:
            return np.empty(count, dtype)
        in_use_bytes = self._in_use_bytes + nbytes
        fitting = [memory for memory in self._idle if memory.nbytes >= nbytes]
        if fitting:
            best = min(fitting, key=lambda memory: memory.nbytes)
            self._remove(best)
            bucket = best[:nbytes].view(dtype)
        else:
            self._shrink(max(self._peak_bytes, in_use_bytes) - in_use_bytes)
            bucket = np.empty(count, dtype)  # if there is no memory, nothing was taken
            self._peak_bytes = max(self._peak_bytes, in_use_bytes)
        self._in_use_bytes = in_use_bytes
        return bucket

    def give_back(self, bucket: Array) -> None:
        if bucket.nbytes < TOO_SMALL_TO_POOL_BYTES:
            return
        self.drop(bucket)
        base = bucket if bucket.base is None else bucket.base
        self._idle.append(base.reshape(-1).view(np.uint8))
        self._shrink(max(0, self._peak_bytes - self._in_use_bytes))

    def drop(self, bucket: Array) -> None:
        """The bucket will not come back: a connection may still be writing into it."""
        if bucket.nbytes >= TOO_SMALL_TO_POOL_BYTES:
            self._in_use_bytes -= bucket.nbytes

    def _shrink(self, allowed_bytes: int) -> None:
        while self._idle and sum(memory.nbytes for memory in self._idle) > allowed_bytes:
            self._remove(min(self._idle, key=lambda memory: memory.nbytes))

    def _remove(self, memory: Array) -> None:
        self._idle = [idle for idle in self._idle if idle is not memory]
