"""Numbers whose sum is known exactly: whole, and small enough that float32 adds them without rounding.

Rank r brings the same pattern as everybody, and 2^r times a weight that no other call of the ring has. So a sum says
which ranks are in it, how often, and of which call; the pattern says of which place.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from xxhash import xxh3_64_hexdigest

LARGEST_WEIGHT = 2000
_LARGEST_IN_THE_PATTERN = 1024


@lru_cache(maxsize=64)
def pattern(count: int, dtype: str = "float32") -> Any:
    numbers = np.random.default_rng(count).integers(0, _LARGEST_IN_THE_PATTERN, count)
    return numbers.astype(dtype)


def fill(numbers: Any, rank: int, weight: int) -> None:
    """What this rank brings to the call with this weight."""
    same_for_all = pattern(numbers.size, numbers.dtype.name)
    np.add(same_for_all, numbers.dtype.type(2**rank * weight), out=numbers)


@lru_cache(maxsize=4096)
def digest_of_input(rank: int, count: int, weight: int, dtype: str) -> str:
    numbers = np.empty(count, dtype)
    fill(numbers, rank, weight)
    return digest(numbers)


@lru_cache(maxsize=4096)
def digest_of_sum(members: Sequence[int], count: int, weight: int, dtype: str) -> str:
    exact = np.multiply(pattern(count, dtype), np.dtype(dtype).type(len(members)))
    exact += np.dtype(dtype).type(sum(2**rank for rank in members) * weight)
    return digest(exact)


def digest(numbers: Any) -> str:
    return xxh3_64_hexdigest(memoryview(numbers).cast("B"))
