"""Detection of NaN and infinity in this rank's input to a reduction, for the setting `on_nonfinite`.

One sum checks a bucket of floats: if it is finite, so are all numbers in it. If not, a second pass looks at each
number, since finite numbers may have an infinite sum. For 16-bit floats numpy has no fast sum, so their exponents are
checked.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.errors import NonfiniteInput
from ringwide.tensors.arithmetic import FLOATS
from ringwide.tensors.bucket import Bucket
from ringwide.tensors.leaves import Signature
from ringwide.tensors.packing import DtypeGroup, Piece

logger = logging.getLogger("ringwide.tensors")

QUIET_SECONDS = 10.0
"""Pause between two warnings: a model that has diverged has NaN in every call."""
_EXPONENTS = {"float16": np.int16(0x7C00), "bfloat16": np.int16(0x7F80)}
_BLOCK = 64 * 1024
"""16-bit numbers checked at once, so that the intermediate results stay in the cache."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The first number of a call that is not finite."""

    rank: int
    tensor: str
    index: tuple[int, ...]
    value: float

    def __str__(self) -> str:
        return f"rank {self.rank} brings {self.value} in {self.tensor} at {list(self.index)}"

    def error(self, number: int) -> NonfiniteInput:
        return NonfiniteInput(number=number, rank=self.rank, tensor=self.tensor, index=self.index, value=self.value)


class Inspector:
    """Checks every reduction of one rank. Of many findings in a row, only some become warnings."""

    def __init__(self, rank: int, *, time: Callable[[], float]) -> None:
        self._rank, self._time = rank, time
        self._silent_until, self._unreported = -math.inf, 0

    def find(
        self, groups: Sequence[DtypeGroup], buckets: Sequence[Bucket], signature: Signature, bucket: str
    ) -> Finding | None:
        for group, numbers in zip(groups, buckets, strict=True):
            position = _first(group.dtype, numbers.ours)
            if position is not None:
                piece = next(piece for piece in group.pieces if position < piece.stop)
                index = _index(position - piece.start, signature.shapes[piece.leaf])
                value = _value(group.dtype, numbers.ours[position])
                return Finding(self._rank, _name(piece, signature, bucket), index, value)
        return None

    def warn(self, finding: Finding) -> None:
        now = self._time()
        if now < self._silent_until:
            self._unreported += 1
            return
        others = f" (so did {self._unreported} calls since the last such line)" if self._unreported else ""
        logger.warning("%s%s", finding, others)
        self._silent_until, self._unreported = now + QUIET_SECONDS, 0


def _name(piece: Piece, signature: Signature, bucket: str) -> str:
    if signature.names:
        return f"tensor {signature.names[piece.leaf]!r}"
    if len(signature.shapes) > 1:
        return f"tensor {piece.leaf}"
    return f"bucket {bucket!r}" if bucket else "the tensor"


def _index(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in np.unravel_index(position, tuple(shape)))


def _first(dtype: str, numbers: Array) -> int | None:
    """Position of the first number that is not finite."""
    if dtype not in FLOATS or not numbers.size:
        return None
    if numbers.dtype.itemsize == 2:
        return _first_of_sixteen_bits(numbers.view(np.int16), _EXPONENTS[dtype])
    with np.errstate(all="ignore"):
        if math.isfinite(np.add.reduce(numbers)):
            return None
    wrong = ~np.isfinite(numbers)
    position = int(wrong.argmax())
    return position if wrong[position] else None


def _first_of_sixteen_bits(bits: Array, exponent: np.int16) -> int | None:
    for start in range(0, bits.size, _BLOCK):
        exponents = bits[start : start + _BLOCK] & exponent
        if exponents.max() == exponent:
            return start + int(exponents.argmax())
    return None


def _value(dtype: str, number: np.generic) -> float:
    if dtype == "bfloat16" and number.dtype == np.int16:
        return float((number.astype(np.int32) << 16).view(np.float32))
    return float(number)
