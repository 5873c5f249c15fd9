"""bfloat16: the upper half of a float32. Its whole range, with 8 significant bits."""

from functools import cache

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.blocks import SCRATCH
from ringwide.compression.codecs.half import SixteenBits, check_finite

BEYOND = np.uint32(0x7F7F8000).view(np.float32)  # this and what is larger would round to infinity
HALF = np.uint32(0x7FFF)  # just less than half of the last place kept; with that place's own bit, ties go to even
ONE = np.uint32(1)
EXPONENT = 0x7F80


class Bfloat16(SixteenBits):
    """Round to nearest even, as torch casts."""

    name = "bf16"
    number = 4
    relative_error = 2.0**-8
    absolute_error = 2.0**-134

    def _round(self, numbers: Array, words: Array) -> bool:
        if not (np.maximum.reduce(numbers) < BEYOND and np.minimum.reduce(numbers) > -BEYOND):  # nor is a NaN
            return False
        bits = numbers.view(np.uint32)
        sums = SCRATCH.first[: numbers.size].view(np.uint32)
        np.right_shift(bits, 16, out=sums)
        np.bitwise_and(sums, ONE, out=sums)
        np.add(sums, HALF, out=sums)
        np.add(sums, bits, out=sums)
        np.right_shift(sums, 16, out=sums)
        np.copyto(words, sums, casting="unsafe")
        return True

    def _widen(self, words: Array, numbers: Array) -> None:
        check_finite(words, EXPONENT)
        bits = numbers.view(np.uint32)
        np.copyto(bits, words)
        np.left_shift(bits, 16, out=bits)

    def _widen_twice(self, words: Array, doubles: Array) -> None:
        check_finite(words, EXPONENT)
        np.take(doubles_of_words(), words, out=doubles, mode="clip")


@cache
def doubles_of_words() -> Array:
    """Every bfloat16 as float64. Some are subnormal as float32, and a processor that flushes those cannot widen them:
    here they are made of integers and powers of two that are normal."""
    words = np.arange(65_536)
    exponents, digits = words >> 7 & 0xFF, words & 0x7F
    normal = exponents > 0
    magnitudes = np.ldexp(digits + 128.0 * normal, np.maximum(exponents, 1) - 127 - 7)
    doubles: Array = np.where(words >> 15, -magnitudes, magnitudes)
    return doubles
