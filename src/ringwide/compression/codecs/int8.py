"""8-bit integers, with a scale for every 256 numbers.

Payload: the scales (float32, little endian), then one int8 for each number. A scale is the 127th part of the largest
magnitude in its block, so one outlier costs the digits of its 255 neighbours only. It is never subnormal, so neither is
what a step times a scale gives: all ranks decode the same bits, whether or not their processors flush such numbers.
"""

from collections.abc import Iterator

import numpy as np

from ringwide.compression.codecs.base import Array, BadPayload, Lossy
from ringwide.compression.codecs.blocks import SCRATCH, as_float32, pieces

BLOCK = 256
SCALE = np.dtype("<f4")
STEPS = 127
LEAST_SCALE = np.float32(2.0**-126)  # the least normal float32: its inverse is finite, and so is that of any larger one
LARGEST_SCALE = np.finfo(np.float32).max / np.float32(128)  # no int8 times this is infinite
ROUNDING = np.float32(1.5 * 2**23)  # adding it leaves the nearest integer in the low bits, ties to even
HALF_A_STEP = 0.5001  # the excess: products and inverses of at most 127 are rounded too


class Int8(Lossy):
    """Each number becomes the nearest of 255 multiples of its block's scale."""

    name = "int8"
    number = 6

    def encode(self, numbers: Array) -> memoryview | None:
        if packed_size(numbers.size) >= numbers.nbytes:
            return None
        payload = np.empty(packed_size(numbers.size), np.uint8)
        scales, steps = parts(payload, numbers.size)
        with np.errstate(all="ignore"):
            for piece, blocks, width in layout(numbers.size):
                rows = as_float32(numbers[piece]).reshape(-1, width)
                if not encode_rows(rows, scales[blocks], steps[piece]):
                    return None
        return payload.data

    def decode(self, payload: memoryview, out: Array) -> None:
        if len(payload) != packed_size(out.size):
            raise BadPayload(f"{len(payload)} bytes, not the {packed_size(out.size)} of {out.size} numbers")
        if not out.size:
            return
        scales, steps = parts(np.frombuffer(payload, np.uint8), out.size)
        if not (scales.min() >= LEAST_SCALE and scales.max() <= LARGEST_SCALE):
            raise BadPayload("a scale that is negative, too small, too large or not finite")
        with np.errstate(all="ignore"):
            for piece, blocks, width in layout(out.size):
                decode_rows(steps[piece], scales[blocks], out[piece].reshape(-1, width))

    def size_bound(self, count: int, itemsize: int) -> int:
        return packed_size(count)

    def _error(self, magnitudes: Array) -> Array:
        tops = np.maximum.reduceat(magnitudes, np.arange(0, magnitudes.size, BLOCK))
        scales = np.maximum(tops / STEPS, float(LEAST_SCALE))
        return np.repeat(scales * HALF_A_STEP, BLOCK)[: magnitudes.size]


def packed_size(count: int) -> int:
    return count + SCALE.itemsize * -(-count // BLOCK)


def parts(payload: Array, count: int) -> tuple[Array, Array]:
    """The scales and the steps in a payload."""
    boundary = payload.size - count
    return payload[:boundary].view(SCALE), payload[boundary:].view(np.int8)


def layout(count: int) -> Iterator[tuple[slice, slice, int]]:
    """Slices of numbers and of blocks, and the width of a block. A last block that is not full comes alone."""
    full = count - count % BLOCK
    for piece in pieces(full):
        yield piece, slice(piece.start // BLOCK, piece.stop // BLOCK), BLOCK
    if full < count:
        yield slice(full, count), slice(full // BLOCK, full // BLOCK + 1), count - full


def encode_rows(rows: Array, scales: Array, steps: Array) -> bool:
    """Write the scale of each row and the steps of all. False if a number is not finite or out of range."""
    scaled = SCRATCH.first[: rows.size].reshape(rows.shape)
    np.abs(rows, out=scaled)
    # Faster than a maximum for each row.
    np.maximum.reduceat(scaled.reshape(-1), np.arange(0, rows.size, rows.shape[1]), out=scales)
    np.divide(scales, STEPS, out=scales)
    np.maximum(scales, LEAST_SCALE, out=scales)
    if not scales.max() <= LARGEST_SCALE:  # nor is a NaN
        return False
    np.multiply(rows, np.reciprocal(scales)[:, np.newaxis], out=scaled)
    np.add(scaled, ROUNDING, out=scaled)
    np.copyto(steps, scaled.reshape(-1).view(np.int32), casting="unsafe")
    return True


def decode_rows(steps: Array, scales: Array, rows: Array) -> None:
    np.copyto(rows, steps.reshape(rows.shape))
    np.multiply(rows, scales[:, np.newaxis], out=rows)
