"""Arithmetic by dtype and op: the carrier dtype, and how numbers are combined and totals finished."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.tensors.bucket import Combiner
from ringwide.tensors.half_rounding import NARROW

HALVES = ("float16", "bfloat16")
FLOATS = ("float64", "float32", *HALVES)
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = FLOATS + INTEGERS
CHARS = {name: np.dtype(name).char for name in DTYPES if name != "bfloat16"}


_UFUNCS: dict[str, Combiner] = {
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


def arithmetic_of(dtype: str, op: str, size: int, *, half_precision: str) -> Arithmetic:
    """The rule for one dtype and operation. Half precision is summed in float32 unless `native` is asked for."""
    if op not in _UFUNCS:
        raise ValueError(f"op {op!r} is not one of {', '.join(_UFUNCS)}")
    if op == "mean" and dtype not in FLOATS:
        raise TypeError(f"the mean of {dtype} need not be an integer; use op='sum' or 'quotient', or a float dtype")
    if op in BITWISE and dtype not in INTEGERS:
        raise TypeError(f"op {op!r} combines the bits of integers, and these are {dtype}; use {', '.join(INTEGERS)}")
    if op == "quotient" and dtype not in INTEGERS:
        raise TypeError(f"op {op!r} divides integers, and these are {dtype}; use op='mean'")
    if dtype == "bfloat16" and half_precision == "native":
        return _native_bfloat16(op, size)
    narrow = NARROW.get(dtype) if half_precision == "float32" else None
    carrier = np.dtype(dtype if narrow is None else "float32")
    weight = {"sum": 1.0, "mean": float(size)}.get(op, 0.0) if dtype in FLOATS else 0.0
    combine = no_float_warnings(_UFUNCS[op]) if dtype in FLOATS else _UFUNCS[op]
    return Arithmetic(carrier, combine, _finish(op, size, carrier), weight, narrow)


def _finish(op: str, size: int, carrier: np.dtype[Any]) -> Callable[[Array], object] | None:
    """The step from the sum of all ranks to the result. None: the sum is the result."""

    def divide_towards_zero(total: Array) -> None:
        wide = total.astype(np.int64)  # a size of 200 does not fit into int8
        total[...] = (wide - np.fmod(wide, size)) // size

    if op == "mean":
        divisor = carrier.type(size)
        return no_float_warnings(methodcaller("__itruediv__", divisor))
    return divide_towards_zero if op == "quotient" else None


def _native_bfloat16(op: str, size: int) -> Arithmetic:
    """numpy has no bfloat16: its bits are carried as int16 and torch does the sums."""
    torch = loaded_torch()
    function = {"sum": torch.add, "mean": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]

    def numbers(bits: Array) -> Any:
        return torch.from_numpy(bits if bits.flags.writeable else bits.copy()).view(torch.bfloat16)

    def combine(left: Array, right: Array, out: Array) -> None:
        function(numbers(left), numbers(right), out=numbers(out))

    def divide(total: Array) -> None:
        numbers(total).div_(size)

    return Arithmetic(np.dtype("int16"), combine, divide if op == "mean" else None)


def carrier_of(dtype: str) -> np.dtype[Any]:
    """The dtype in which numbers travel when nothing is added to them."""
    return np.dtype("int16" if dtype == "bfloat16" else dtype)
