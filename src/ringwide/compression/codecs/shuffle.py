"""Byte shuffle: first all lowest bytes of the numbers, then all next ones, and so on.

Neighbouring numbers are more alike in their exponents than in their last digits. Side by side, those bytes repeat,
which is what a lossless compressor looks for.
"""

import numpy as np

from ringwide.compression.codecs.base import Array, Codec, Lossless, bytes_of
from ringwide.compression.codecs.blocks import pieces, scratch_for

WORDS = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}  # shifting whole words is several times as fast as picking bytes
OFFSET = 64  # from a codec's number to that of its shuffled form


class Shuffled(Lossless):
    """A lossless codec that sees the bytes of the numbers in another order."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.name = f"{codec.name}+shuffle"
        self.number = codec.number + OFFSET

    def encode(self, numbers: Array) -> memoryview | None:
        planes = np.empty((numbers.itemsize, numbers.size), np.uint8)
        if numbers.itemsize in WORDS:
            split(numbers.view(WORDS[numbers.itemsize]), planes)
        else:
            planes[:] = bytes_of(numbers).reshape(-1, numbers.itemsize).T
        return self.codec.encode(planes.reshape(-1))

    def decode(self, payload: memoryview, out: Array) -> None:
        planes = np.empty((out.itemsize, out.size), np.uint8)
        self.codec.decode(payload, planes.reshape(-1))
        if out.itemsize in WORDS:
            join(planes, out.view(WORDS[out.itemsize]))
        else:
            bytes_of(out).reshape(-1, out.itemsize)[:] = planes.T

    def size_bound(self, count: int, itemsize: int) -> int:
        return self.codec.size_bound(count, itemsize)


def split(words: Array, planes: Array) -> None:
    for piece in pieces(words.size):
        shifted = scratch_for(words[piece])
        for place, plane in enumerate(planes):
            np.right_shift(words[piece], 8 * place, out=shifted)
            np.copyto(plane[piece], shifted, casting="unsafe")


def join(planes: Array, words: Array) -> None:
    for piece in pieces(words.size):
        part, widened = words[piece], scratch_for(words[piece])
        np.copyto(part, planes[0, piece])
        for place, plane in enumerate(planes[1:], 1):
            np.copyto(widened, plane[piece])
            np.left_shift(widened, 8 * place, out=widened)
            np.bitwise_or(part, widened, out=part)
