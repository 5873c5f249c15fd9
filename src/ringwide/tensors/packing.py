"""Packing: leaves of one dtype share a flat bucket, and results are written back when all buckets are done.

A dtype group that is one contiguous array in this machine's memory is used where it lies, without a copy. Everything
else is copied into one flat bucket: several small tensors, strided ones, other devices, and half precision, which is
widened to float32 for summing, and narrowed by the owner of each total (`compression/codecs/narrowing.py`).

Results of copies are written back only by `Bundle.commit`. A bucket that is used where it lies has memory beside it, in
which the collective saves what it replaces. Either way, after an error the caller's tensors hold what they held before.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.narrowing import upper_halves
from ringwide.tensors.arithmetic import CHARS, Arithmetic, carrier_of
from ringwide.tensors.bucket import Bucket, BucketShape, BufferPool, Label
from ringwide.tensors.leaves import Leaf, Signature, memory_of, require_unchanged
from ringwide.tensors.memory_claims import overlap_within


class Piece(NamedTuple):
    """Where a leaf lies in its bucket."""

    leaf: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class DtypeGroup:
    """All leaves of one dtype: they share a bucket."""

    dtype: str
    arithmetic: Arithmetic
    pieces: tuple[Piece, ...]
    count: int
    label: Label | None = None

    def totals(self, bucket: Array) -> Array:
        """What a bucket holds in the end: half precision that was carried in float32 is there as bits."""
        return bucket if self.arithmetic.narrow is None else upper_halves(bucket, carrier_of(self.dtype))

    @property
    def shape(self) -> BucketShape:
        return BucketShape(self.dtype, self.count, self.arithmetic.carrier.itemsize)


def groups_of(
    signature: Signature, arithmetic_for: Callable[[str], Arithmetic], *, label_of: Callable[[str], Label] | None = None
) -> tuple[DtypeGroup, ...]:
    """How tensors of this signature are packed, one group for each dtype in order of first appearance."""
    pieces: dict[str, list[Piece]] = {}
    for index, (dtype, shape) in enumerate(zip(signature.dtypes, signature.shapes, strict=True)):
        group = pieces.setdefault(dtype, [])
        start = group[-1].stop if group else 0
        group.append(Piece(index, start, start + math.prod(shape)))
    return tuple(
        DtypeGroup(dtype, arithmetic_for(dtype), tuple(found), found[-1].stop, label_of(dtype) if label_of else None)
        for dtype, found in pieces.items()
    )


def has_carrier(group: DtypeGroup) -> bool:
    """Is it carried in its own dtype, in numpy's eyes too?"""
    return group.arithmetic.carrier.char == CHARS.get(group.dtype)


class Bundle:
    """Everything one call brought, as buckets. Run a collective over `numbers`, then commit, give back or discard."""

    __slots__ = ("_borrowed", "_copied", "_copies", "_leaves", "_pool", "numbers")

    def __init__(
        self, leaves: Sequence[Leaf], groups: Sequence[DtypeGroup], pool: BufferPool, *, copies: bool = False
    ) -> None:
        self._leaves, self._pool = leaves, pool
        self._copies = copies or _must_copy(leaves, groups)
        self._copied: list[tuple[DtypeGroup, Array]] = []  # what is not used where it lies
        self._borrowed: list[Array] = []
        try:
            self.numbers = [self._load(group) for group in groups]
        except BaseException:
            self.discard()
            raise

    def _load(self, group: DtypeGroup) -> Bucket:
        arithmetic, pieces = group.arithmetic, group.pieces
        memory = self._pool.take(group.count, arithmetic.carrier)
        self._borrowed.append(memory)
        in_place = len(pieces) == 1 and not self._copies
        ours = self._leaves[pieces[0].leaf].lies_flat(arithmetic.carrier) if in_place else None
        saved: Array | None = memory
        if ours is None:
            ours, saved = memory, None
            self._copied.append((group, memory))
            for leaf, start, stop in pieces:
                self._leaves[leaf].load(memory[start:stop])
        return Bucket(
            ours, saved, arithmetic.combine, arithmetic.finish, arithmetic.weight, group.label, arithmetic.narrow
        )

    def totals(self) -> Array:
        """Of the only bucket, as the caller's dtype, or what carries it."""
        ((group, memory),) = self._copied
        return group.totals(memory)

    def check(self) -> None:
        """Do the results of copies still fit where they belong?"""
        require_unchanged([self._leaves[leaf] for group, _ in self._copied for leaf, _, _ in group.pieces])

    def commit(self) -> None:
        """Write the results of copies into the caller's tensors."""
        for group, memory in self._copied:
            totals = group.totals(memory)
            for leaf, start, stop in group.pieces:
                self._leaves[leaf].store(totals[start:stop])

    def give_back(self) -> None:
        """The buckets are free again."""
        for memory in self._borrowed:
            self._pool.give_back(memory)

    def discard(self) -> None:
        """After an error: this memory is not used again, whatever may still refer to it."""
        for memory in self._borrowed:
            self._pool.drop(memory)


def _must_copy(leaves: Sequence[Leaf], groups: Sequence[DtypeGroup]) -> bool:
    """Do tensors share memory, so that one of them, used where it lies, would change what another one brings?"""
    if len(groups) < 2:
        return False
    return overlap_within(memory_of(leaves))


# Where the tensors of all ranks come together: in memory of the caller's if it lies flat, else in a bucket of ours.


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
