"""Where the tensors of all ranks come together: in memory of the caller's if it lies flat, else in a bucket of ours."""

import math
from typing import Any

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.tensors.arithmetic import carrier_of
from ringwide.tensors.bucket import Bucket
from ringwide.tensors.buffer_pool import BufferPool
from ringwide.tensors.leaves import Leaf


class GatherBuffer:
    """What one all-gather fills. As with a `Bundle`: run it over `numbers`, then commit or discard."""

    def __init__(self, leaf: Leaf, into: Leaf | None, *, rank: int, size: int, pool: BufferPool) -> None:
        self._leaf, self._into, self._size, self._pool = leaf, into, size, pool
        self._count = math.prod(leaf.shape)
        self._own = slice(self._count * rank, self._count * (rank + 1))
        carrier = carrier_of(leaf.dtype)
        # What is given away in the end cannot come from the pool.
        total = self._count * size
        self._memory = np.empty(total, carrier) if into is None else pool.take(total, carrier)
        flat = None if into is None else into.lies_flat(carrier)
        self._in_place = flat is not None
        ours = self._memory if flat is None else flat
        if self._in_place:
            self._memory[self._own] = ours[self._own]
        if self._in_place and _is_share(leaf, ours):  # it is read as a whole before any of it is overwritten
            own = np.empty(self._count, carrier)
            leaf.load(own)
            ours[self._own] = own
        else:
            leaf.load(ours[self._own])
        self.numbers = [Bucket(ours, self._memory if self._in_place else None, np.add)]

    def commit(self) -> Any:
        """What the caller gets: its own memory, filled, or a tensor for each rank."""
        ours = self.numbers[0].ours
        if self._into is None:
            parts = ours.reshape(self._size, self._count)
            return [self._leaf.like(part, self._leaf.shape) for part in parts]
        if not self._in_place:
            self._into.store(ours)
        return None

    def give_back(self) -> None:
        if self._into is not None:
            self._pool.give_back(self._memory)

    def discard(self) -> None:
        """After an error: what others sent is out of the caller's memory again, and so must be what we put there."""
        if self._in_place:
            self.numbers[0].ours[self._own] = self._memory[self._own]
        if self._into is not None:
            self._pool.drop(self._memory)


def _is_share(leaf: Leaf, ours: Array) -> bool:
    memory = leaf.memory()
    return memory is not None and np.may_share_memory(memory, ours)


def require_room(into: Leaf, count: int, dtype: str, what: str) -> None:
    """`into` must hold exactly what will be written there."""
    into.require_writable("into")
    there = math.prod(into.shape)
    if into.dtype != dtype or there != count:
        raise ValueError(
            f"into is {into.dtype}{list(into.shape)}, {there} elements; for {what} it must have {count} of {dtype}"
        )
