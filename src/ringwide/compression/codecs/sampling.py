"""Is compressing worth the time? A look at a few spots tells, at a fraction of the cost."""

from collections.abc import Iterator
from typing import NamedTuple

from ringwide.compression.codecs.base import Array, Codec
from ringwide.compression.codecs.shuffle import Shuffled


class Look(NamedTuple):
    """How many spots of which size, and what share of their raw size is small enough."""

    spots: int
    spot_bytes: int
    at_most: float


A_GLANCE = Look(8, 4096, 0.9)
A_LONG_LOOK = Look(2, 65536, 0.96)
"""Shuffled numbers shrink in long runs only, and dense floats by a few percent: who asks for a shuffle wants those."""


def shrinks(codec: Codec, numbers: Array, look: Look | None = None) -> bool:
    """Do evenly spread spots of these numbers, encoded one by one, shrink enough?"""
    spots, spot_bytes, at_most = look or (A_LONG_LOOK if isinstance(codec, Shuffled) else A_GLANCE)
    raw = encoded = 0
    for spot in spread(numbers, spots, max(1, spot_bytes // numbers.itemsize)):
        payload = codec.encode(spot)
        raw += spot.nbytes
        encoded += spot.nbytes if payload is None else len(payload)
    return encoded < at_most * raw


def spread(numbers: Array, spots: int, length: int) -> Iterator[Array]:
    """The first spot at the start, the last at the end; all numbers in one if the spots would touch."""
    if numbers.size <= spots * length or spots == 1:
        yield numbers[: max(length, numbers.size if spots > 1 else 0)]
        return
    for spot in range(spots):
        start = (numbers.size - length) * spot // (spots - 1)
        yield numbers[start : start + length]
