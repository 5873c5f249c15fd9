"""IEEE half precision: 11 significant bits, from 6e-8 to 65504.

numpy casts to float16 one number after the other. Here the same bits are found with a dozen operations on whole
arrays, several times as fast.

To halves. Adding 2^13 times a number's power of two to its magnitude leaves just 11 of its bits, rounded as the
hardware rounds: to nearest, ties to even. They are then the low bits of the sum, and the sum's exponent is the half's,
up to a constant. Magnitudes below 2^-14, where halves run out of exponents, are treated as if they had that power.

To floats. The bits of a half, moved to where float32 has them, are right for all but the subnormal halves: float32
would read a leading one that they do not have. It is taken away by subtracting, never by scaling float32's own
subnormals, because a process may have told its processor to take those for zero.
"""

import numpy as np

from ringwide.codec.codec import Array
from ringwide.codec.pieces import SCRATCH
from ringwide.codec.sixteen import SixteenBits, check_finite

FLOAT_EXPONENT = np.uint32(0x7F800000)
LEAST_POWER = np.uint32((127 - 14) << 23)  # 2^-14, the least normal half
THIRTEEN_UP = np.uint32(13 << 23)
CONSTANT = np.uint16(0x0800)  # -((127 + 13 - 14) << 10), in 16 bits
SIGN = np.uint32(0x8000)

EXPONENT = 0x7C00
FLOAT_SIGN = np.uint32(0x80000000)
MAGNITUDE = np.uint32(0x0FFFE000)
REBIAS = np.uint32((127 - 15) << 23)
LEAST_NORMAL = np.float32(2.0**-14)
ZERO = np.float32(0)


class Float16(SixteenBits):
    """Round to nearest even, as numpy casts."""

    name = "fp16"
    number = 5
    beyond = 65520.0
    relative_error = 2.0**-11
    absolute_error = 2.0**-25

    def _round(self, numbers: Array, words: Array) -> None:
        magnitudes, powers = SCRATCH.first[: numbers.size], SCRATCH.second[: numbers.size]
        bits, power_bits = magnitudes.view(np.uint32), powers.view(np.uint32)
        np.abs(numbers, out=magnitudes)
        np.bitwise_and(bits, FLOAT_EXPONENT, out=power_bits)
        np.maximum(power_bits, LEAST_POWER, out=power_bits)
        np.add(power_bits, THIRTEEN_UP, out=power_bits)
        np.add(magnitudes, powers, out=magnitudes)
        np.right_shift(bits, 13, out=power_bits)
        np.add(bits, power_bits, out=bits)
        np.right_shift(numbers.view(np.uint32), 16, out=power_bits)
        np.bitwise_and(power_bits, SIGN, out=power_bits)
        np.add(bits, power_bits, out=bits)
        np.copyto(words, bits, casting="unsafe")
        np.add(words, CONSTANT, out=words)

    def _widen(self, words: Array, numbers: Array) -> None:
        check_finite(words, EXPONENT)
        bits = numbers.view(np.uint32)
        lower = SCRATCH.first[: numbers.size]
        signs = SCRATCH.second[: numbers.size].view(np.uint32)
        np.left_shift(words.view(np.dtype("<i2")), 13, out=bits.view(np.int32), dtype=np.int32)  # with 4 bits of sign
        np.bitwise_and(bits, FLOAT_SIGN, out=signs)
        np.bitwise_and(bits, MAGNITUDE, out=bits)
        np.add(bits, REBIAS, out=bits)
        np.subtract(numbers, LEAST_NORMAL, out=lower)
        np.minimum(lower, ZERO, out=lower)
        np.add(numbers, lower, out=numbers)
        np.bitwise_or(bits, signs, out=bits)
