"""What a bucket held, segment by segment, until the collective that replaces it has succeeded.

Totals land right where the caller wants them, while others are still on their way. Just before a segment is replaced it
is saved here; if the collective fails, all that was replaced is put back. That costs one pass over memory, as a copy at
the end would, but it is paid while the network is the slower one.
"""

from collections.abc import Sequence

from ringwide.compression.codecs.base import Array


class Originals:
    """The numbers that were replaced. `saved` is None where nobody will want them back."""

    __slots__ = ("_bounds", "_is_saved", "_ours", "_saved")

    def __init__(self, ours: Array, saved: Array | None, bounds: Sequence[tuple[int, int]]) -> None:
        self._ours, self._saved, self._bounds = ours, saved, bounds
        self._is_saved = bytearray(0 if saved is None else len(bounds))

    def save(self, segment: int) -> None:
        """This segment is about to be replaced, perhaps not for the first time."""
        if self._saved is not None and not self._is_saved[segment]:
            first, last = self._bounds[segment]
            self._saved[first:last] = self._ours[first:last]
            self._is_saved[segment] = 1

    def put_back(self) -> None:
        """Whoever might still write to the numbers must have been stopped before."""
        if self._saved is None:
            return
        for segment, (first, last) in enumerate(self._bounds):
            if self._is_saved[segment]:
                self._ours[first:last] = self._saved[first:last]
        self._saved = None
