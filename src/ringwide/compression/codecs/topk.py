"""The largest few: a fraction of the numbers, exactly as they are; the others arrive as 0.

Payload, little endian: how many are kept (uint32) · how many of each block of 65536 numbers (uint32 each) · where in
its block each stands (uint16 each, ascending) · the numbers themselves, as their dtype has them.
"""

import math
from typing import Any

import numpy as np

from ringwide.compression.codecs.base import Array, BadPayload, Lossy

BLOCK = 65_536
COUNT = np.dtype("<u4")
PLACE = np.dtype("<u2")
BITS = {4: "u4", 8: "u8"}
SAMPLED = 61  # one number out of so many; a prime, as numbers may repeat in rows
INFINITY = {4: 0x7F800000, 8: 0x7FF0000000000000}


class TopK(Lossy):
    """Keeps the numbers of largest magnitude; of equal ones the first."""

    name = "topk"
    number = 7
    needs_feedback = True

    def __init__(self, fraction: float = 0.01) -> None:
        self.fraction = fraction

    def kept(self, count: int) -> int:
        return min(count, max(1, math.ceil(self.fraction * count)))

    def encode(self, numbers: Array) -> memoryview | None:
        kept = self.kept(numbers.size)
        if packed_size(numbers.size, kept, numbers.itemsize) >= numbers.nbytes:
            return None
        # The bits of magnitudes are ordered as they are, and integers are faster to sort.
        magnitudes = np.abs(numbers).view(BITS[numbers.itemsize])
        if magnitudes.max() >= INFINITY[numbers.itemsize]:
            return None
        return pack(numbers, largest(magnitudes, kept))

    def decode(self, payload: memoryview, out: Array) -> None:
        kept, blocks = read_counts(payload, out)
        places, values = parts(np.frombuffer(payload, np.uint8), kept, out)
        where = places + np.repeat(np.arange(blocks.size) * BLOCK, blocks)
        if kept and (where[-1] >= out.size or (np.diff(where) <= 0).any()):
            raise BadPayload("places that do not ascend or lie beyond the numbers")
        out[:] = 0
        out[where] = values

    def size_bound(self, count: int, itemsize: int) -> int:
        return packed_size(count, self.kept(count), itemsize)

    def error_bound(self, numbers: Array) -> Array:
        if self.encode(numbers) is None:
            return np.zeros(numbers.size)
        magnitudes = np.abs(numbers)
        kept = largest(magnitudes, self.kept(numbers.size))
        bound = magnitudes.astype(np.float64)
        bound[kept] = 0
        return bound


def packed_size(count: int, kept: int, itemsize: int) -> int:
    return COUNT.itemsize * (1 + -(-count // BLOCK)) + kept * (PLACE.itemsize + itemsize)


def largest(magnitudes: Array, kept: int) -> Array:
    """Positions of the `kept` largest, ascending."""
    candidates = np.flatnonzero(magnitudes >= guess(magnitudes, kept))
    if candidates.size < kept:  # guessed too high
        candidates = np.arange(magnitudes.size)
    values = magnitudes[candidates]
    least = kth_largest(values, kept)
    where: Array = candidates[values >= least]
    surplus = where.size - kept
    if not surplus:
        return where
    ties = np.flatnonzero(magnitudes[where] == least)
    return np.delete(where, ties[-surplus:])


def guess(magnitudes: Array, kept: int) -> Any:
    """A magnitude that probably somewhat more than `kept` of them reach. It saves sorting all the others."""
    sample = magnitudes[::SAMPLED]
    expected = kept / SAMPLED
    return kth_largest(sample, min(sample.size, math.ceil(expected + 3 * math.sqrt(expected) + 3)))


def kth_largest(magnitudes: Array, k: int) -> Any:
    return np.partition(magnitudes, magnitudes.size - k)[magnitudes.size - k]


def pack(numbers: Array, where: Array) -> memoryview:
    starts = np.searchsorted(where, np.arange(0, numbers.size + BLOCK, BLOCK))
    return memoryview(
        b"".join(
            (
                COUNT.type(where.size).tobytes(),
                np.diff(starts).astype(COUNT).tobytes(),
                where.astype(PLACE).tobytes(),  # modulo 65536, the size of a block
                numbers[where].tobytes(),
            )
        )
    )


def read_counts(payload: memoryview, out: Array) -> tuple[int, Array]:
    """Number of kept values, and number per block, if they agree with each other and with the payload's length."""
    blocks = -(-out.size // BLOCK)
    if len(payload) < COUNT.itemsize * (1 + blocks):
        raise BadPayload(f"{len(payload)} bytes are too few for its counts")
    counts = np.frombuffer(payload, COUNT, 1 + blocks)
    kept = int(counts[0])
    if len(payload) != packed_size(out.size, kept, out.itemsize):
        raise BadPayload(f"{len(payload)} bytes, not those of {kept} numbers out of {out.size}")
    if int(counts[1:].sum(dtype=np.uint64)) != kept:
        raise BadPayload(f"its blocks do not hold {kept} numbers together")
    return kept, counts[1:]


def parts(payload: Array, kept: int, out: Array) -> tuple[Array, Array]:
    """Positions and values."""
    end = payload.size - kept * out.itemsize
    return payload[end - kept * PLACE.itemsize : end].view(PLACE), payload[end:].view(out.dtype)
