"""What the lossy codecs have in common: they take floats, and give back what they could keep."""

from typing import Any

import numpy as np

from ringwide.codec.codec import Array

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class Lossy:
    """The half of a codec that follows from losing something."""

    lossy = True
    needs_feedback = False  # what is lost in a call is bounded, and small

    def carries(self, dtype: np.dtype[Any]) -> bool:
        return dtype in FLOATS

    def encode(self, numbers: Array) -> memoryview | None:
        raise NotImplementedError

    def error_bound(self, numbers: Array) -> Array:
        if self.encode(numbers) is None:
            return np.zeros(numbers.size)  # they travel as they are
        with np.errstate(all="ignore"):
            return self._error(np.abs(numbers.astype(np.float64))) + narrowing(numbers)

    def _error(self, magnitudes: Array) -> Array:
        """How far float32 numbers of these magnitudes may end from where they were."""
        raise NotImplementedError


def narrowing(numbers: Array) -> Array | float:
    """What float64 numbers lose on their way through float32; twice that, as what is lost then is lost by others."""
    if numbers.dtype == np.float32:
        return 0.0
    return np.abs(numbers) * 2.0**-23 + 2.0**-149
