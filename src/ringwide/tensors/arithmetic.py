"""Arithmetic by dtype and op: the carrier dtype, and how numbers are combined and totals finished."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Literal

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.blocks import SCRATCH, pieces
from ringwide.compression.codecs.half import HALF_FORMATS, HalfFormat
from ringwide.tensors.bucket import Bucket, Combiner, Label

HALVES = ("float16", "bfloat16")
FLOATS = ("float64", "float32", *HALVES)
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = FLOATS + INTEGERS
CHARS = {name: np.dtype(name).char for name in DTYPES if name != "bfloat16"}

OpName = Literal["sum", "mean", "min", "max", "prod", "band", "bor", "bxor", "quotient"]
_UFUNCS: dict[OpName, Combiner] = {
    "sum": np.add,
    "mean": np.add,
    "min": lambda left, right, out: np.minimum(left, right, out=out),  # numpy deprecates these two without `out=`
    "max": lambda left, right, out: np.maximum(left, right, out=out),
    "prod": np.multiply,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "quotient": np.add,
}
BITWISE = ("band", "bor", "bxor")
FOR_INTEGERS = (*BITWISE, "quotient")
"""The quotient is the sum divided by the number of ranks, rounded towards zero: the mean of integers."""
OPERATIONS = tuple(op for op in _UFUNCS if op not in FOR_INTEGERS)
no_float_warnings = np.errstate(all="ignore")
"""Infinity and NaN are ordinary results. Where warnings are errors, a warning would end the connection."""


def loaded_torch() -> Any:
    return sys.modules["torch"]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Rule for one dtype and op: the dtype in which numbers are carried, and the functions that a collective needs."""

    carrier: np.dtype[Any]
    combine: Callable[[Array, Array, Array], object]
    finish: Callable[[Array], object] | None
    weight: float = 0.0
    """Divisor of a sum of floats, see `Bucket`."""
    narrow: Callable[[Array], object] | None = None
    """Rounds a total to half precision, see `Bucket`."""
    halves: HalfFormat | None = None
    """Half precision that is carried as it is and summed in float32, see `Bucket`."""

    @property
    def sum_itemsize(self) -> int:
        """Bytes of a sum on its way."""
        return self.carrier.itemsize if self.halves is None else _WIDE.itemsize

    def bucket(self, ours: Array, saved: Array | None, label: Label | None) -> Bucket:
        return Bucket(ours, saved, self.combine, self.finish, self.weight, label, self.narrow, self.halves)


def arithmetic_of(dtype: str, op: str, size: int, *, half_precision: str, widened: bool = False) -> Arithmetic:
    """The rule for one dtype and operation.

    Half precision is summed in float32, unless `native` is asked for. `widened`: it is carried in float32 as well, so
    that codecs can encode it.
    """
    if op not in _UFUNCS:
        raise ValueError(f"op {op!r} is not one of {', '.join(_UFUNCS)}")
    if op == "mean" and dtype not in FLOATS:
        raise TypeError(f"the mean of {dtype} need not be an integer; use op='sum' or 'quotient', or a float dtype")
    if op in BITWISE and dtype not in INTEGERS:
        raise TypeError(f"op {op!r} combines the bits of integers, and these are {dtype}; use {', '.join(INTEGERS)}")
    if op == "quotient" and dtype not in INTEGERS:
        raise TypeError(f"op {op!r} divides integers, and these are {dtype}; use op='mean'")
    combine = no_float_warnings(_UFUNCS[op]) if dtype in FLOATS else _UFUNCS[op]
    weight = {"sum": 1.0, "mean": float(size)}.get(op, 0.0) if dtype in FLOATS else 0.0
    half = HALF_FORMATS.get(dtype)
    if half is None:
        carrier = np.dtype(dtype)
        return Arithmetic(carrier, combine, _finish(op, size, carrier), weight)
    finish = _finish(op, size, _WIDE)
    if half_precision == "native":
        return Arithmetic(half.carrier, _rounded_sum(half, combine), finish and _rounded(half, finish))
    if widened:
        return Arithmetic(_WIDE, combine, finish, weight, half.narrow_in_place)
    return Arithmetic(half.carrier, _wide_sum(half, combine), finish, weight, halves=half)


def _finish(op: str, size: int, carrier: np.dtype[Any]) -> Callable[[Array], object] | None:
    """The step from the sum of all ranks to the result. None: the sum is the result."""

    def divide_towards_zero(total: Array) -> None:
        wide = total.astype(np.int64)  # a size of 200 does not fit into int8
        total[...] = (wide - np.fmod(wide, size)) // size

    if op == "mean":
        divisor = carrier.type(size)
        return no_float_warnings(methodcaller("__itruediv__", divisor))
    return divide_towards_zero if op == "quotient" else None


_WIDE = np.dtype(np.float32)


def _wide_sum(half: HalfFormat, combine: Combiner) -> Combiner:
    """Combination of words or float32 into float32, which may be one of those that are combined."""

    def combine_wide(left: Array, right: Array, out: Array) -> None:
        for piece in pieces(out.size):
            total = out[piece]
            wide_left = _widened(half, left[piece], total)
            combine(wide_left, _widened(half, right[piece], SCRATCH.second[: total.size]), total)

    return combine_wide


def _widened(half: HalfFormat, numbers: Array, memory: Array) -> Array:
    if numbers.dtype == _WIDE:
        return numbers
    half.widen(numbers, memory)
    return memory


def _rounded_sum(half: HalfFormat, combine: Combiner) -> Combiner:
    """Combination of words that is rounded to words. float32 has more than twice their digits, so that the result is
    the one that a processor with such an instruction would have."""

    def combine_rounded(left: Array, right: Array, out: Array) -> None:
        for piece in pieces(out.size):
            total, other = SCRATCH.narrow[: out[piece].size], SCRATCH.second[: out[piece].size]
            half.widen(left[piece], total)
            half.widen(right[piece], other)
            combine(total, other, total)
            half.narrow(total, out[piece])

    return combine_rounded


def _rounded(half: HalfFormat, finish: Callable[[Array], object]) -> Callable[[Array], object]:
    def finish_rounded(words: Array) -> None:
        for piece in pieces(words.size):
            total = SCRATCH.narrow[: words[piece].size]
            half.widen(words[piece], total)
            finish(total)
            half.narrow(total, words[piece])

    return finish_rounded


def sum_itemsize(dtype: str, half_precision: str) -> int:
    """Bytes of a sum on its way, by which an algorithm is chosen."""
    return (_WIDE if dtype in HALVES and half_precision == "float32" else carrier_of(dtype)).itemsize


def carrier_of(dtype: str) -> np.dtype[Any]:
    """The dtype in which numbers travel when nothing is added to them."""
    half = HALF_FORMATS.get(dtype)
    return np.dtype(dtype) if half is None else half.carrier
