"""Memory in which the payload that comes next lands before it is added to something. One for each lane."""


class Scratch:
    """Nearly always the same memory, so it stays in the cache."""

    def __init__(self) -> None:
        self._current = memoryview(bytearray())
        self._spare: list[memoryview] = []

    def take(self, nbytes: int) -> memoryview:
        """Where the next payload lands. It is overwritten by the one after, unless it is lent."""
        if len(self._current) < nbytes:
            self._current = memoryview(bytearray(nbytes))
        return self._current[:nbytes]

    def glance(self, nbytes: int) -> memoryview:
        """As `take`, for a payload that is done with when `arrived` returns, and is never lent.

        Where it lies in memory that is shared with the peer it is read right there.
        """
        return self.take(nbytes)

    def lend(self) -> memoryview:
        """The payload is still needed: the next one gets other memory. To be given back."""
        lent = self._current
        self._current = self._spare.pop() if self._spare else memoryview(bytearray())
        return lent

    def give_back(self, lent: memoryview) -> None:
        """Fresh memory costs a page fault every 4 KiB, so what was lent is used again."""
        self._spare.append(lent)
