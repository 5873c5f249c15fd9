"""IEEE half precision: 11 significant bits, from 6e-8 to 65504.

numpy casts to float16 one number after the other. Here the same bits are found with a dozen operations on whole
arrays, several times as fast.

To halves. Adding 2^13 times a number's power of two to its magnitude leaves just 11 of its bits, rounded as the
hardware rounds: to nearest, ties to even. They are then the low bits of the sum, and the sum's exponent is the half's,
up to a constant. Magnitudes below 2^-14, where halves run out of exponents, are treated as if they had that power.

To floats. There are only 65536 halves, so they are looked up. Moving their bits to where float32 has them and scaling
takes less time, but makes float32's own subnormals on the way, which a process may have told its processor to take for
zero; without those it takes more.
"""

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.blocks import PIECE, SCRATCH
from ringwide.compression.codecs.half import SixteenBits, check_finite

FLOAT_EXPONENT = np.uint32(0x7F800000)
LEAST_POWERS = np.full(PIECE, (127 - 14) << 23, np.uint32)  # 2^-14, the least normal half; numpy is slow with one value
THIRTEEN_UP = np.uint32(13 << 23)
CONSTANT = np.uint16(0x0800)  # -((127 + 13 - 14) << 10), in 16 bits
SIGN = np.uint32(0x8000)
BEYOND = 65520.0  # this and what is larger would round to infinity

EXPONENT = 0x7C00
FLOAT_OF = np.arange(65_536, dtype=np.uint16).view(np.float16).astype(np.float32)


class Float16(SixteenBits):
    """Round to nearest even, as numpy casts."""

    name = "fp16"
    number = 5
    relative_error = 2.0**-11
    absolute_error = 2.0**-25

    def _round(self, numbers: Array, words: Array) -> bool:
        return round_to_halves(numbers, words)

    def _widen(self, words: Array, numbers: Array) -> None:
        check_finite(words, EXPONENT)
        np.take(FLOAT_OF, words, out=numbers, mode="clip")


def round_to_halves(numbers: Array, words: Array) -> bool:
    """Write the nearest halves of a piece. False if one of the numbers is not finite or out of range."""
    magnitudes, powers = SCRATCH.first[: numbers.size], SCRATCH.second[: numbers.size]
    bits, power_bits = magnitudes.view(np.uint32), powers.view(np.uint32)
    np.abs(numbers, out=magnitudes)
    if not np.maximum.reduce(magnitudes) < BEYOND:  # nor is a NaN
        return False
    np.bitwise_and(bits, FLOAT_EXPONENT, out=power_bits)
    np.maximum(power_bits, LEAST_POWERS[: numbers.size], out=power_bits)
    np.add(power_bits, THIRTEEN_UP, out=power_bits)
    np.add(magnitudes, powers, out=magnitudes)
    np.right_shift(bits, 13, out=power_bits)
    np.add(bits, power_bits, out=bits)
    np.right_shift(numbers.view(np.uint32), 16, out=power_bits)
    np.bitwise_and(power_bits, SIGN, out=power_bits)
    np.add(bits, power_bits, out=bits)
    np.copyto(words, bits, casting="unsafe")
    np.add(words, CONSTANT, out=words)
    return True
