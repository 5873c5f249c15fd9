"""Byte shuffle: first all lowest bytes of the numbers, then all next ones, and so on.

Neighbouring numbers are more alike in their exponents than in their last digits. Side by side, those bytes repeat,
which is what a lossless compressor looks for.
"""

import numpy as np

from ringwide.codec.codec import Array, Codec
from ringwide.codec.lossless import Lossless, bytes_of

OFFSET = 64  # from a codec's number to that of its shuffled form


class Shuffled(Lossless):
    """A lossless codec that sees the bytes of the numbers in another order."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.name = f"{codec.name}+shuffle"
        self.number = codec.number + OFFSET

    def encode(self, numbers: Array) -> memoryview | None:
        return self.codec.encode(shuffled(numbers))

    def decode(self, payload: memoryview, out: Array) -> None:
        planes = np.empty(out.nbytes, np.uint8)
        self.codec.decode(payload, planes)
        bytes_of(out).reshape(-1, out.itemsize)[:] = planes.reshape(out.itemsize, -1).T

    def size_bound(self, count: int, itemsize: int) -> int:
        return self.codec.size_bound(count, itemsize)


def shuffled(numbers: Array) -> Array:
    return np.ascontiguousarray(bytes_of(numbers).reshape(-1, numbers.itemsize).T).reshape(-1)
