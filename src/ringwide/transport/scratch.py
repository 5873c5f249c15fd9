"""Memory in which the payload that comes next lands before it is added to something. One for each lane."""


class Scratch:
    """Nearly always the same memory, so it stays in the cache."""

    def __init__(self) -> None:
        self._current = memoryview(b"")
        self._spare: list[memoryview] = []

    def take(self, nbytes: int) -> memoryview:
        """Where the next payload lands. It is overwritten by the one after, unless it is lent."""
        if len(self._current) < nbytes:
            self._current = memoryview(bytearray(nbytes))
        return self._current[:nbytes]

    def lend(self) -> memoryview:
        """The payload is still needed: the next one gets other memory. To be given back."""
        lent = self._current
        self._current = self._spare.pop() if self._spare else memoryview(b"")
        return lent

    def give_back(self, lent: memoryview) -> None:
        """Fresh memory costs a page fault every 4 KiB, so what was lent is used again."""
        self._spare.append(lent)
