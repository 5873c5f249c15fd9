"""Working through a segment in pieces that stay in the cache, with memory that each thread keeps.

Fresh memory costs more than the arithmetic done in it: the kernel hands it out page by page. A piece is as large as it
can be while temporaries of its size stay in the second-level cache, since each numpy call costs a microsecond too.
"""

import threading
from collections.abc import Iterator

import numpy as np

from ringwide.codec.codec import Array

PIECE = 65_536


class Scratch(threading.local):
    """Two temporaries for a piece, as numbers or as their bits; each thread that asks has its own."""

    def __init__(self) -> None:
        self.first = np.empty(PIECE, np.float32)
        self.second = np.empty(PIECE, np.float32)
        self.narrow = np.empty(PIECE, np.float32)  # float64 on its way to float32, or back


SCRATCH = Scratch()


def pieces(count: int) -> Iterator[slice]:
    return (slice(start, min(start + PIECE, count)) for start in range(0, count, PIECE))


def as_float32(numbers: Array) -> Array:
    """A piece as float32. What float32 cannot hold becomes an infinity, which no lossy codec takes."""
    if numbers.dtype == np.float32:
        return numbers
    narrow = SCRATCH.narrow[: numbers.size]
    np.copyto(narrow, numbers, casting="same_kind")
    return narrow
