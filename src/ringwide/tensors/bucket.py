"""Buckets: one rank's numbers as a flat array of one dtype, and the pool of memory for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.half import HalfFormat

Combiner = Callable[[Array, Array, Array], object]
"""combine(left, right, out)"""


@dataclass(frozen=True, slots=True)
class Label:
    """Identity of a bucket for error feedback: `name` finds its error, and `what` must be unchanged."""

    name: str
    what: str


@dataclass(frozen=True, slots=True)
class BucketShape:
    """A bucket as the plan sees it: dtype, number of elements, and the bytes of a sum of them."""

    dtype: str
    count: int
    itemsize: int


class Bucket(NamedTuple):
    """One rank's numbers, and how they are combined.

    `ours` holds this rank's numbers; segment by segment the totals replace them. Numbers are copied to `saved` before
    they are replaced, and copied back if the collective fails. None: nobody needs them back.
    """

    ours: Array
    saved: Array | None
    combine: Combiner
    finish: Callable[[Array], object] | None = None
    weight: float = 0.0
    """Divisor of a sum of floats, 1 for a plain sum. 0: not a sum of floats, so lossy codecs are not allowed."""
    label: Label | None = None
    """Identity for error feedback, if it has any."""
    narrow: Callable[[Array], object] | None = None
    """Rounds a finished total to half precision, in place. The result is bits to be moved, not numbers to add."""
    halves: HalfFormat | None = None
    """Set if `ours` are words of half precision that are summed in float32, see `collectives/half_operation.py`."""

    def complete(self, total: Array, place: Array) -> None:
        """Do what the owner of a total does once: finish it, and round it into its place, which may be where it is."""
        if self.finish is not None:
            self.finish(total)
        if self.halves is not None:
            self.halves.narrow(total, place)
        elif self.narrow is not None:
            self.narrow(total)


def bytes_of(array: Array) -> memoryview:
    return array.data.cast("B") if array.size else memoryview(bytearray())


EMPTY_BUCKET = Bucket(np.empty(0, np.uint8), None, np.add)
"""For a part of a plan that carries no data and only synchronizes ranks."""


TOO_SMALL_TO_POOL_BYTES = 128 * 1024
"""Below this size the allocator is faster than a search in the pool."""


class BufferPool:
    """Idle memory for buckets. Fresh memory costs a page fault every 4 KiB, more than the network on a fast link.

    In use and idle together, it never holds more than was once in use at the same time.
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
            bucket = np.empty(count, dtype)  # before anything is counted: there may be no memory
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
        """Stop counting a bucket that is not given back, because a connection may still write into it."""
        if bucket.nbytes >= TOO_SMALL_TO_POOL_BYTES:
            self._in_use_bytes -= bucket.nbytes

    def _shrink(self, allowed_bytes: int) -> None:
        while self._idle and sum(memory.nbytes for memory in self._idle) > allowed_bytes:
            self._remove(min(self._idle, key=lambda memory: memory.nbytes))

    def _remove(self, memory: Array) -> None:
        self._idle = [idle for idle in self._idle if idle is not memory]
