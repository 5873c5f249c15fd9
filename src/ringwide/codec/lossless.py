"""What the lossless codecs have in common: they see bytes, so every dtype will do, and they give back what went in."""

from typing import Any

import numpy as np

from ringwide.codec.codec import Array, BadPayload


class Lossless:
    """The half of a codec that follows from losing nothing."""

    lossy = needs_feedback = False

    def carries(self, dtype: np.dtype[Any]) -> bool:
        return not dtype.hasobject and dtype.itemsize > 0

    def size_bound(self, count: int, itemsize: int) -> int:
        return max(0, count * itemsize - 1)  # what does not shrink is not encoded

    def error_bound(self, numbers: Array) -> Array:
        return np.zeros(numbers.size)


def bytes_of(numbers: Array) -> Array:
    """The same memory as bytes."""
    return numbers.view(np.uint8)


def memory_of(numbers: Array) -> memoryview:
    return bytes_of(numbers).data


def if_smaller(payload: bytes, numbers: Array) -> memoryview | None:
    return memoryview(payload) if len(payload) < numbers.nbytes else None


def fill(out: Array, raw: bytes | bytearray | memoryview) -> None:
    """Copy the bytes that a payload gave into `out`, which they must fill exactly."""
    if len(raw) != out.nbytes:
        raise BadPayload(f"{len(raw)} bytes come out, the numbers take {out.nbytes}")
    if out.size:
        bytes_of(out)[:] = np.frombuffer(raw, np.uint8)
