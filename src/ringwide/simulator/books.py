"""Error feedback keeps books: what all calls brought has come out of them, or some rank still owes it."""

from collections.abc import Iterable, Iterator

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.compression.feedback import FeedbackStore
from ringwide.simulator.memory import Memory

_ROUNDING = 1e-3
"""Numbers are near 1, and at most a few hundred are in one sum."""


class Books:
    """Of every bucket that a codec may change: what was brought and has not come out."""

    def __init__(self) -> None:
        self._missing: dict[str, Array] = {}
        self._noted: set[tuple[int, str, int, int]] = set()

    def note(self, index: int, memory: Memory) -> None:
        """A call has succeeded on a rank. What all ranks get counts once."""
        for name, count, share, missing in memory.losses():
            entry = index, name, share.start, share.stop
            if entry not in self._noted:
                self._noted.add(entry)
                self._missing.setdefault(name, np.zeros(count))[share] += missing

    def mistakes(self, stores: Iterable[FeedbackStore]) -> Iterator[str]:
        """Buckets of which the ranks owe something else than is missing."""
        owed: dict[str, Array] = {}
        for store in stores:
            for label, error in store.items():
                owed[label.name] = owed.get(label.name, 0) + error
        for name in {**self._missing, **owed}:
            missing, promised = self._missing.get(name, 0), owed.get(name, 0)
            if not np.allclose(missing, promised, rtol=0.0, atol=_ROUNDING):
                yield f"{name}: {missing} is missing, but {promised} is owed"
