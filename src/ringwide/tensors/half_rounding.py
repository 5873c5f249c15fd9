"""Half precision that is carried in float32: a total is narrowed once, and its 16 bits are moved from then on.

The bits of a narrowed number stand in the upper half of its float32, where those of a bfloat16 are anyway. Rounding is
to nearest, ties to even. Of a NaN sign and payload stay, as far as there is room, and it is made quiet. No step depends
on how a thread or processor treats subnormal numbers: those of float32 are integers here, or far below what is kept.
"""

from typing import Any

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.blocks import SCRATCH, pieces
from ringwide.compression.codecs.half import round_to_bfloat16s, round_to_float16s

MAGNITUDE = np.uint32(0x7FFFFFFF)
INFINITY = np.uint32(0x7F800000)
QUIET_BFLOAT16 = np.uint32(0x00400000)
BEYOND_FLOAT16 = np.uint32(0x477FF000)  # 65520: this and what is larger rounds to infinity
SIGN, FLOAT16_INFINITY, FLOAT16_QUIET, FLOAT16_PAYLOAD = 0x8000, 0x7C00, 0x0200, 0x03FF


@np.errstate(all="ignore")  # infinity and NaN are results like others
def narrow_to_bfloat16(numbers: Array) -> None:
    for piece in pieces(numbers.size):
        bits, words = numbers[piece].view(np.uint32), SCRATCH.narrow.view(np.uint16)[: numbers[piece].size]
        round_to_bfloat16s(numbers[piece], words)
        if np.isnan(np.maximum.reduce(numbers[piece])):
            odd = np.flatnonzero((bits & MAGNITUDE) > INFINITY)
            words[odd] = (bits[odd] | QUIET_BFLOAT16) >> 16
        np.copyto(bits, words)
        np.left_shift(bits, 16, out=bits)


@np.errstate(all="ignore")
def narrow_to_float16(numbers: Array) -> None:
    for piece in pieces(numbers.size):
        bits, words = numbers[piece].view(np.uint32), SCRATCH.narrow.view(np.uint16)[: numbers[piece].size]
        if not round_to_float16s(numbers[piece], words):
            _narrow_any_to_float16(bits, words)
        np.copyto(bits, words)
        np.left_shift(bits, 16, out=bits)


def _narrow_any_to_float16(bits: Array, words: Array) -> None:
    """For numbers among which infinities and NaNs are, or will be."""
    beyond = np.flatnonzero((bits & MAGNITUDE) >= BEYOND_FLOAT16)
    ends = bits[beyond]
    bits[beyond] = 0
    round_to_float16s(bits.view(np.float32), words)
    payloads = np.where(ends & MAGNITUDE > INFINITY, FLOAT16_QUIET | (ends >> 13 & FLOAT16_PAYLOAD), 0)
    words[beyond] = ends >> 16 & SIGN | FLOAT16_INFINITY | payloads


NARROW = {"float16": narrow_to_float16, "bfloat16": narrow_to_bfloat16}


def upper_halves(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """View of the bits of narrowed numbers, in a dtype of 16 bits."""
    return numbers.view(np.uint16)[1::2].view(dtype)
