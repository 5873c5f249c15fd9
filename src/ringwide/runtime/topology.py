"""Where the ranks of a ring are, and what follows for what is small. Ranks find it out together: one answer for all.

Each rank notes what it sees when it has met the others; the notes are combined as bits, and what one rank has computed
of them is what all get.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.tensors.bucket import BucketShape
from ringwide.transport.link import EXPRESS_BYTES, EXPRESS_MEMORY_BYTES

KIB = 1024
NETWORK_BYTES, HOST_BYTES, MEMORY_BYTES, CROWDED_MEMORY_BYTES = 64 * KIB, 256 * KIB, 512 * KIB, 1024 * KIB
"""Up to which size the tree pays: docs/decisions/0017-one-owner-for-every-bit.md has the arithmetic."""
_CORES_LIMIT = 1024
NOTES = BucketShape("uint8", 2 + _CORES_LIMIT, 1)


def notes(*, one_host: bool, by_memory: bool, cores: Collection[int]) -> Array:
    """What one rank sees: are all others on its host, does it share memory with all, and which cores may it use?"""
    noted = np.zeros(NOTES.count, np.uint8)
    noted[:2] = not one_host, not by_memory
    noted[[2 + core % _CORES_LIMIT for core in cores]] = 1
    return noted


class Topology(NamedTuple):
    """What all ranks see together."""

    one_host: bool
    by_memory: bool
    crowded: bool
    """They share one host, and have fewer cores together than they are. Ranks pinned to a core each take no turns."""

    @classmethod
    def of(cls, combined: Array, size: int) -> "Topology":
        one_host, by_memory = not combined[0], not combined[1]
        return cls(one_host, by_memory, one_host and size > int(np.count_nonzero(combined[2:])))

    @property
    def express_bytes(self) -> int:
        return EXPRESS_MEMORY_BYTES if self.by_memory else EXPRESS_BYTES

    @property
    def tree_bytes(self) -> int:
        """The largest bucket for which the tree is faster than the ring."""
        if not self.one_host:
            return NETWORK_BYTES
        if not self.by_memory:
            return HOST_BYTES
        return CROWDED_MEMORY_BYTES if self.crowded else MEMORY_BYTES
