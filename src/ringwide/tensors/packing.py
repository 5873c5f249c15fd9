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
from typing import NamedTuple

from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.narrowing import upper_halves
from ringwide.tensors.arithmetic import CHARS, Arithmetic, carrier_of
from ringwide.tensors.bucket import Bucket, BucketShape, Label
from ringwide.tensors.buffer_pool import BufferPool
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
