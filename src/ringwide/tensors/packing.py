"""Packing: leaves of one dtype share a flat bucket, and results are written back when all buckets are done.

A dtype group that is one contiguous array in CPU memory is used in place, without a copy. Everything else is copied
into one flat bucket: several tensors, strided ones, other devices, and half precision that a codec is to encode. The
latter is widened to float32 for that, and narrowed by the owner of each total.

Results of copies are written back only by `Bundle.commit`. A bucket that is used in place has memory beside it, in
which the collective saves the numbers that it replaces. Either way, after an error the caller's tensors hold what they
held before.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.half import upper_halves
from ringwide.tensors.arithmetic import CHARS, Arithmetic, carrier_of
from ringwide.tensors.bucket import Bucket, BucketShape, BufferPool, Label
from ringwide.tensors.leaves import Leaf, Signature, memory_of, require_unchanged
from ringwide.tensors.memory_claims import overlap_within


class Piece(NamedTuple):
    """Position of a leaf in its bucket."""

    leaf: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class DtypeGroup:
    """All leaves of one dtype, which share a bucket."""

    dtype: str
    arithmetic: Arithmetic
    pieces: tuple[Piece, ...]
    count: int
    label: Label | None = None

    def totals(self, bucket: Array) -> Array:
        """The results in a bucket. Half precision that was carried in float32 is returned as bits."""
        return bucket if self.arithmetic.narrow is None else upper_halves(bucket, carrier_of(self.dtype))

    @property
    def shape(self) -> BucketShape:
        return BucketShape(self.dtype, self.count, self.arithmetic.sum_itemsize)


def groups_of(
    signature: Signature, arithmetic_for: Callable[[str], Arithmetic], *, label_of: Callable[[str], Label] | None = None
) -> tuple[DtypeGroup, ...]:
    """Packing of tensors of this signature: one group for each dtype, in order of first appearance."""
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
    """Whether a group is carried in its own dtype, and numpy has that dtype."""
    return group.arithmetic.carrier.char == CHARS.get(group.dtype)


class Bundle:
    """All tensors of one call as buckets. Run a collective over `numbers`, then commit, give back or discard."""

    __slots__ = ("_borrowed", "_copied", "_copies", "_leaves", "_pool", "numbers")

    def __init__(
        self, leaves: Sequence[Leaf], groups: Sequence[DtypeGroup], pool: BufferPool, *, copies: bool = False
    ) -> None:
        self._leaves, self._pool = leaves, pool
        self._copies = copies or _must_copy(leaves, groups)
        self._copied: list[tuple[DtypeGroup, Array]] = []  # groups that are not used in place
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
        ours = self._leaves[pieces[0].leaf].flat_view(arithmetic.carrier) if in_place else None
        saved: Array | None = memory
        if ours is None:
            ours, saved = memory, None
            self._copied.append((group, memory))
            for leaf, start, stop in pieces:
                self._leaves[leaf].load(memory[start:stop])
        return arithmetic.bucket(ours, saved, group.label)

    def totals(self) -> Array:
        """Results of the only bucket, in the caller's dtype or its carrier."""
        ((group, memory),) = self._copied
        return group.totals(memory)

    def check(self) -> None:
        """Refuse to go on if the results of copies no longer fit into the caller's tensors."""
        require_unchanged([self._leaves[leaf] for group, _ in self._copied for leaf, _, _ in group.pieces])

    def commit(self) -> None:
        """Write the results of copies into the caller's tensors."""
        for group, memory in self._copied:
            totals = group.totals(memory)
            for leaf, start, stop in group.pieces:
                self._leaves[leaf].store(totals[start:stop])

    def give_back(self) -> None:
        """Return the buckets to the pool."""
        for memory in self._borrowed:
            self._pool.give_back(memory)

    def discard(self) -> None:
        """After an error: do not reuse this memory, as something may still refer to it."""
        for memory in self._borrowed:
            self._pool.drop(memory)


def _must_copy(leaves: Sequence[Leaf], groups: Sequence[DtypeGroup]) -> bool:
    """Whether tensors share memory, so that one that is used in place would change the input of another."""
    if len(groups) < 2:
        return False
    return overlap_within(memory_of(leaves))


class GatherBuffer:
    """Memory that one all-gather fills: the caller's, if it is flat, or a bucket of ours.

    As with a `Bundle`: run the collective over `numbers`, then commit or discard.
    """

    def __init__(self, leaf: Leaf, into: Leaf | None, *, rank: int, size: int, pool: BufferPool) -> None:
        self._leaf, self._into, self._size, self._pool = leaf, into, size, pool
        self._count = math.prod(leaf.shape)
        self._own = slice(self._count * rank, self._count * (rank + 1))
        carrier = carrier_of(leaf.dtype)
        # Memory that the caller gets to keep cannot come from the pool.
        total = self._count * size
        self._memory = np.empty(total, carrier) if into is None else pool.take(total, carrier)
        flat = None if into is None else into.flat_view(carrier)
        self._in_place = flat is not None
        ours = self._memory if flat is None else flat
        if self._in_place:
            self._memory[self._own] = ours[self._own]
        if self._in_place and _may_overlap(leaf, ours):  # read all of it before any of it is overwritten
            own = np.empty(self._count, carrier)
            leaf.load(own)
            ours[self._own] = own
        else:
            leaf.load(ours[self._own])
        self.numbers = [Bucket(ours, self._memory if self._in_place else None, np.add)]

    def commit(self) -> Any:
        """The result: a tensor for each rank, or None if the caller's own memory was filled."""
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
        """After an error: restore this rank's part too. The collective has restored the parts of the others."""
        if self._in_place:
            self.numbers[0].ours[self._own] = self._memory[self._own]
        if self._into is not None:
            self._pool.drop(self._memory)


def _may_overlap(leaf: Leaf, ours: Array) -> bool:
    memory = leaf.memory()
    return memory is not None and np.may_share_memory(memory, ours)


def require_room(into: Leaf, count: int, dtype: str, what: str) -> None:
    """Refuse an `into` that does not hold exactly what will be written there."""
    into.require_writable("into")
    there = math.prod(into.shape)
    if into.dtype != dtype or there != count:
        raise ValueError(
            f"into is {into.dtype}{list(into.shape)}, {there} elements; for {what} it must have {count} of {dtype}"
        )
