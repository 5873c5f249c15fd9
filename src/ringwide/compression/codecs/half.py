"""16-bit floats: how they are widened to float32 and rounded back, and the codecs bf16 and fp16 that send them.

Rounding is to nearest, ties to even. Of a NaN sign and payload stay, as far as there is room, and it is made quiet. No
step depends on how a thread or processor treats subnormal numbers: those of float32 are integers here, or far below
what is kept.

bfloat16 is the upper half of a float32: its whole range, with 8 significant bits.

IEEE half precision has 11 significant bits, from 6e-8 to 65504. numpy casts to it one number after the other. Here the
same bits are found with a dozen operations on whole arrays, several times as fast.

To halves. Adding 2^13 times a number's power of two to its magnitude leaves just 11 of its bits, rounded as the
hardware rounds: to nearest, ties to even. They are then the low bits of the sum, and the sum's exponent is the half's,
up to a constant. Magnitudes below 2^-14, where halves run out of exponents, are treated as if they had that power.

To floats. There are only 65536 halves, so they are looked up. Moving their bits to where float32 has them and scaling
takes less time, but makes float32's own subnormals on the way, which a process may have told its processor to take for
zero; without those it takes more. Where torch is loaded it casts both ways, with instructions that numpy does not use.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ringwide.compression.codecs.base import Array, BadPayload, Lossy
from ringwide.compression.codecs.blocks import PIECE, SCRATCH, as_float32, pieces


class SixteenBits(Lossy):
    """Encodes each number as the nearest 16-bit float, little endian; ties to even."""

    relative_error: float
    absolute_error: float  # of numbers so small that the format has fewer digits for them

    def encode(self, numbers: Array) -> memoryview | None:
        words = np.empty(numbers.size, np.dtype("<u2"))
        with np.errstate(all="ignore"):
            for piece in pieces(numbers.size):
                if not self._round(as_float32(numbers[piece]), words[piece]):
                    return None
        return words.data.cast("B") if numbers.size else None

    def decode(self, payload: memoryview, out: Array) -> None:
        if len(payload) != 2 * out.size:
            raise BadPayload(f"{len(payload)} bytes, not the {2 * out.size} of {out.size} numbers")
        words = np.frombuffer(payload, np.dtype("<u2")) if out.size else np.empty(0, np.dtype("<u2"))
        with np.errstate(all="ignore"):
            for piece in pieces(out.size):
                self._decode_piece(words[piece], out[piece])

    def _decode_piece(self, words: Array, out: Array) -> None:
        if out.dtype == np.float32:
            self._widen(words, out)
        else:
            self._widen_twice(words, out)

    def _widen_twice(self, words: Array, doubles: Array) -> None:
        """Decode through float32, where no number is subnormal: a processor that flushes those would read zero."""
        wide = SCRATCH.narrow[: doubles.size]
        self._widen(words, wide)
        doubles[:] = wide

    def size_bound(self, count: int, itemsize: int) -> int:
        return 2 * count

    def _error(self, magnitudes: Array) -> Array:
        return np.maximum(magnitudes * self.relative_error, self.absolute_error)

    def _round(self, numbers: Array, words: Array) -> bool:
        """Write the nearest 16-bit floats of a piece. False if one of the numbers is not finite or out of range."""
        raise NotImplementedError

    def _widen(self, words: Array, numbers: Array) -> None:
        """Write the numbers of a piece of 16-bit floats, or raise `BadPayload` if one of them is not finite."""
        raise NotImplementedError


def _check_finite(words: Array, exponent: int) -> None:
    """No word may have all bits of its exponent set: that is an infinity or a NaN, which the encoder never writes."""
    if np.bitwise_and(words, exponent).max() == exponent:
        raise BadPayload("it holds a number that is not finite")


# -- bfloat16

BFLOAT16_EXPONENT = 0x7F80
_BEYOND_BFLOAT16 = np.uint32(0x7F7F8000).view(np.float32)  # this and what is larger would round to infinity
_HALF = np.uint32(0x7FFF)  # just less than half of the last place kept; with that place's own bit, ties go to even
_ONE = np.uint32(1)


class Bfloat16(SixteenBits):
    """Round to nearest even, as torch casts."""

    name = "bf16"
    number = 4
    relative_error = 2.0**-8
    absolute_error = 2.0**-134

    def _round(self, numbers: Array, words: Array) -> bool:
        if not (np.maximum.reduce(numbers) < _BEYOND_BFLOAT16 and np.minimum.reduce(numbers) > -_BEYOND_BFLOAT16):
            return False  # nor is a NaN
        round_to_bfloat16s(numbers, words)
        return True

    def _widen(self, words: Array, numbers: Array) -> None:
        _check_finite(words, BFLOAT16_EXPONENT)
        widen_bfloat16s(words, numbers)

    def _widen_twice(self, words: Array, doubles: Array) -> None:
        _check_finite(words, BFLOAT16_EXPONENT)
        np.take(doubles_of_words(), words, out=doubles, mode="clip")


def round_to_bfloat16s(numbers: Array, words: Array) -> None:
    """Write the nearest bfloat16s of a piece without NaNs, as words."""
    bits, sums = numbers.view(np.uint32), SCRATCH.first[: numbers.size].view(np.uint32)
    np.right_shift(bits, 16, out=sums)
    np.bitwise_and(sums, _ONE, out=sums)
    np.add(sums, _HALF, out=sums)
    np.add(sums, bits, out=sums)
    np.right_shift(sums, 16, out=sums)
    np.copyto(words, sums, casting="unsafe")


def widen_bfloat16s(words: Array, numbers: Array) -> None:
    bits = numbers.view(np.uint32)
    np.copyto(bits, words)
    np.left_shift(bits, 16, out=bits)


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


# -- float16

FLOAT16_EXPONENT = 0x7C00
_FLOAT_EXPONENT = np.uint32(0x7F800000)
_LEAST_POWERS = np.full(
    PIECE, (127 - 14) << 23, np.uint32
)  # 2^-14, the least normal half; numpy is slow with one value
_THIRTEEN_UP = np.uint32(13 << 23)
_CONSTANT = np.uint16(0x0800)  # -((127 + 13 - 14) << 10), in 16 bits
_SIGN = np.uint32(0x8000)
_BEYOND_FLOAT16 = 65520.0  # this and what is larger would round to infinity
_FLOAT_OF = np.arange(65_536, dtype=np.uint16).view(np.float16).astype(np.float32)


class Float16(SixteenBits):
    """Round to nearest even, as numpy casts."""

    name = "fp16"
    number = 5
    relative_error = 2.0**-11
    absolute_error = 2.0**-25

    def _round(self, numbers: Array, words: Array) -> bool:
        return round_to_float16s(numbers, words)

    def _widen(self, words: Array, numbers: Array) -> None:
        _check_finite(words, FLOAT16_EXPONENT)
        widen_float16s(words, numbers)


def round_to_float16s(numbers: Array, words: Array) -> bool:
    """Write the nearest halves of a piece, as words. False if one of the numbers is not finite or out of range."""
    magnitudes, powers = SCRATCH.first[: numbers.size], SCRATCH.second[: numbers.size]
    bits, power_bits = magnitudes.view(np.uint32), powers.view(np.uint32)
    np.abs(numbers, out=magnitudes)
    if not np.maximum.reduce(magnitudes) < _BEYOND_FLOAT16:  # nor is a NaN
        return False
    np.bitwise_and(bits, _FLOAT_EXPONENT, out=power_bits)
    np.maximum(power_bits, _LEAST_POWERS[: numbers.size], out=power_bits)
    np.add(power_bits, _THIRTEEN_UP, out=power_bits)
    np.add(magnitudes, powers, out=magnitudes)
    np.right_shift(bits, 13, out=power_bits)
    np.add(bits, power_bits, out=bits)
    np.right_shift(numbers.view(np.uint32), 16, out=power_bits)
    np.bitwise_and(power_bits, _SIGN, out=power_bits)
    np.add(bits, power_bits, out=bits)
    np.copyto(words, bits, casting="unsafe")
    np.add(words, _CONSTANT, out=words)
    return True


def widen_float16s(words: Array, numbers: Array) -> None:
    np.take(_FLOAT_OF, words, out=numbers, mode="clip")


# -- formats, for numbers of any kind


@dataclass(frozen=True, slots=True)
class HalfFormat:
    """How words of 16 bits become float32 and back, one piece at a time."""

    carrier: np.dtype[Any]
    """The dtype of the words; numpy has no bfloat16."""
    widen_piece: Callable[[Array, Array], object]
    narrow_piece: Callable[[Array, Array], object]

    @np.errstate(all="ignore")  # infinity and NaN are results like others
    def widen(self, words: Array, numbers: Array) -> None:
        for piece in pieces(words.size):
            self.widen_piece(words[piece].view(np.uint16), numbers[piece])

    @np.errstate(all="ignore")
    def narrow(self, numbers: Array, words: Array) -> None:
        """Round to words. The numbers may be overwritten."""
        for piece in pieces(words.size):
            self.narrow_piece(numbers[piece], words[piece].view(np.uint16))

    @np.errstate(all="ignore")
    def narrow_in_place(self, numbers: Array) -> None:
        """Round numbers, and leave their words in the upper halves, where those of a bfloat16 are anyway."""
        for piece in pieces(numbers.size):
            bits, words = numbers[piece].view(np.uint32), SCRATCH.narrow.view(np.uint16)[: numbers[piece].size]
            self.narrow_piece(numbers[piece], words)
            np.copyto(bits, words)
            np.left_shift(bits, 16, out=bits)


def upper_halves(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """View of the words of numbers that were narrowed in place."""
    return numbers.view(np.uint16)[1::2].view(dtype)


_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_QUIET_BFLOAT16 = np.uint32(0x00400000)
_LEAST_BEYOND_FLOAT16 = np.uint32(0x477FF000)  # 65520: this and what is larger rounds to infinity
_FLOAT16_QUIET, _FLOAT16_PAYLOAD = 0x0200, 0x03FF


def _narrow_to_bfloat16s(numbers: Array, words: Array) -> None:
    has_nan = np.isnan(np.maximum.reduce(numbers))
    if not has_nan and _cast_by_torch(numbers, words, "bfloat16"):
        return
    round_to_bfloat16s(numbers, words)
    if has_nan:
        bits = numbers.view(np.uint32)
        odd = np.flatnonzero((bits & _MAGNITUDE) > _INFINITY)
        words[odd] = (bits[odd] | _QUIET_BFLOAT16) >> 16


def _narrow_to_float16s(numbers: Array, words: Array) -> None:
    if not np.isnan(np.maximum.reduce(numbers)) and _cast_by_torch(numbers, words, "float16"):
        return
    if not round_to_float16s(numbers, words):
        bits = numbers.view(np.uint32)
        beyond = np.flatnonzero((bits & _MAGNITUDE) >= _LEAST_BEYOND_FLOAT16)
        ends = bits[beyond]
        bits[beyond] = 0
        round_to_float16s(numbers, words)
        payloads = np.where(ends & _MAGNITUDE > _INFINITY, _FLOAT16_QUIET | (ends >> 13 & _FLOAT16_PAYLOAD), 0)
        words[beyond] = ends >> 16 & _SIGN | FLOAT16_EXPONENT | payloads


def _widen_float16s(words: Array, numbers: Array) -> None:
    if not _cast_by_torch(words, numbers, "float16"):
        widen_float16s(words, numbers)


def _widen_bfloat16s(words: Array, numbers: Array) -> None:
    if not _cast_by_torch(words, numbers, "bfloat16"):
        widen_bfloat16s(words, numbers)


_SERIAL = 32_704
"""So many numbers torch casts on the calling thread. For more it would wake its own, of which every rank has some."""


def _cast_by_torch(source: Array, target: Array, dtype: str) -> bool:
    """Cast words of this dtype to numbers, or back, with torch. NaNs are not for torch, which forgets what they say.

    False: torch is not there, or would warn of memory that must not be written to.
    """
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "from_numpy") or not source.flags.writeable:  # another thread may be importing it right now
        return False
    given, taken = (_as_tensor(torch, array, dtype) for array in (source, target))
    step = source.size if torch.get_num_threads() == 1 else _SERIAL
    for start in range(0, source.size, max(1, step)):
        taken[start : start + step].copy_(given[start : start + step])
    return True


def _as_tensor(torch: Any, array: Array, dtype: str) -> Any:
    if array.dtype != np.uint16:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(getattr(torch, dtype))


HALF_FORMATS = {
    "float16": HalfFormat(np.dtype(np.float16), _widen_float16s, _narrow_to_float16s),
    "bfloat16": HalfFormat(np.dtype(np.int16), _widen_bfloat16s, _narrow_to_bfloat16s),
}
