"""Bucket: one rank's numbers as a flat array of one dtype, and how they are combined."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

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
