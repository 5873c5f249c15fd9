"""Contract of all codecs, and the parts that lossless and lossy ones share.

Rules:
- The wire says which codec a payload has by its `number`; decoding needs no settings beside it.
- `encode` is deterministic and only reads. It may return None, "let these numbers travel raw": because they
  would not shrink, or because the format cannot hold them. A lossy codec never guesses: a segment with a NaN, an
  infinity or a number beyond its range travels raw, so whatever was not finite arrives as it was.
- `decode` trusts nothing: it fills `out` completely or raises `BadPayload`, and never needs memory beyond what `out`
  and the payload are large.
- Both may be called from several threads at once.
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class BadPayload(Exception):
    """Bytes that the codec cannot have made of as many numbers. The text says why."""


class Codec(Protocol):
    """One way to write a segment's numbers as bytes."""

    @property
    def name(self) -> str:
        """Name in the settings and the statistics."""
        ...

    @property
    def number(self) -> int:
        """Number on the wire, 0 to 255."""
        ...

    @property
    def lossy(self) -> bool:
        """Whether decoded numbers may differ from those encoded."""
        ...

    @property
    def needs_feedback(self) -> bool:
        """Whether it loses so much in one call that the error must be added in the next."""
        ...

    def carries(self, dtype: np.dtype[Any]) -> bool:
        """Whether it can encode numbers of this dtype."""
        ...

    def encode(self, numbers: Array) -> memoryview | None:
        """The payload of a flat, contiguous array, smaller than the array itself. None: send the numbers raw."""
        ...

    def decode(self, payload: memoryview, out: Array) -> None:
        """The numbers of a payload, written into a flat, contiguous array of as many elements as were encoded."""
        ...

    def size_bound(self, count: int, itemsize: int) -> int:
        """Largest payload of `count` numbers."""
        ...

    def error_bound(self, numbers: Array) -> Array:
        """Largest error of each of these numbers. 0 where nothing is lost."""
        ...


class Lossless:
    """Base of the lossless codecs. They see bytes, so they carry every dtype."""

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


FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class Lossy:
    """Base of the lossy codecs, which carry floats only."""

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
        """Largest error of float32 numbers of these magnitudes."""
        raise NotImplementedError


def narrowing(numbers: Array) -> Array | float:
    """Twice the error of float64 numbers in float32: the codec rounds numbers that were rounded already."""
    if numbers.dtype == np.float32:
        return 0.0
    return np.abs(numbers) * 2.0**-23 + 2.0**-149


class Raw(Lossless):
    """No codec: numbers travel as they are in memory. It can decode, so that readers need no special case."""

    name = "none"
    number = 0

    def encode(self, numbers: Array) -> memoryview | None:
        return None

    def decode(self, payload: memoryview, out: Array) -> None:
        fill(out, payload)

    def size_bound(self, count: int, itemsize: int) -> int:
        return count * itemsize
