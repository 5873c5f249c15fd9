"""What every codec promises.

Rules:
- The wire says which codec a payload has by its `number`; decoding needs no settings beside it.
- `encode` is deterministic and only reads. It may answer None, "let these numbers travel as they are": because they
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
    """These bytes are not what the codec makes of as many numbers. The text says why."""


class Codec(Protocol):
    """One way to write a segment's numbers as bytes."""

    @property
    def name(self) -> str:
        """As in the settings and the statistics."""
        ...

    @property
    def number(self) -> int:
        """As on the wire, 0 to 255."""
        ...

    @property
    def lossy(self) -> bool:
        """May decoded numbers differ from those encoded?"""
        ...

    @property
    def needs_feedback(self) -> bool:
        """Does it lose so much in one call that this must be made up for in the next?"""
        ...

    def carries(self, dtype: np.dtype[Any]) -> bool:
        """Can it encode numbers of this dtype?"""
        ...

    def encode(self, numbers: Array) -> memoryview | None:
        """The payload of a flat, contiguous array, smaller than the array itself. None: send the numbers raw."""
        ...

    def decode(self, payload: memoryview, out: Array) -> None:
        """The numbers of a payload, written into a flat, contiguous array of as many elements as were encoded."""
        ...

    def size_bound(self, count: int, itemsize: int) -> int:
        """No payload of `count` numbers is larger."""
        ...

    def error_bound(self, numbers: Array) -> Array:
        """For each of these numbers, how far it may be from what comes out, at most. 0 where nothing is lost."""
        ...
