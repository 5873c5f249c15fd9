"""Pieces of a segment that stay in the cache, and the memory of each thread to work on them.

Fresh memory costs more than the arithmetic done in it: the kernel hands it out page by page. Pieces are few, since each
numpy call costs a microsecond or more, and a chance to lose the interpreter to another thread.
"""

import threading
from collections.abc import Iterator

import numpy as np

from ringwide.compression.codecs.base import Array

PIECE = 131_072


class BlockScratch(threading.local):
    """Temporary arrays for a piece. Each thread has its own."""

    def __init__(self) -> None:
        self.words = np.empty(PIECE, np.uint64)
        self.first, self.second = self.words.view(np.float32).reshape(2, PIECE)
        self.narrow = np.empty(PIECE, np.float32)  # float64 on its way to float32, or back


SCRATCH = BlockScratch()


def pieces(count: int) -> Iterator[slice]:
    return (slice(start, min(start + PIECE, count)) for start in range(0, count, PIECE))


def scratch_for(words: Array) -> Array:
    """As many words of the same kind, of up to 8 bytes."""
    return SCRATCH.words.view(words.dtype)[: words.size]


def as_float32(numbers: Array) -> Array:
    """A piece as float32. What float32 cannot hold becomes an infinity, which no lossy codec takes."""
    if numbers.dtype == np.float32:
        return numbers
    narrow = SCRATCH.narrow[: numbers.size]
    np.copyto(narrow, numbers, casting="same_kind")
    return narrow
