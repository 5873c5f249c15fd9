"""Base of the two codecs of 16-bit floats."""

import numpy as np

from ringwide.compression.codecs.base import Array, BadPayload, Lossy
from ringwide.compression.codecs.blocks import SCRATCH, as_float32, pieces


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


def check_finite(words: Array, exponent: int) -> None:
    """No word may have all bits of its exponent set: that is an infinity or a NaN, which the encoder never writes."""
    if np.bitwise_and(words, exponent).max() == exponent:
        raise BadPayload("it holds a number that is not finite")
