"""Arrays of every dtype the ring carries. numpy has no bfloat16, so that one is a torch tensor."""

from typing import Any

import numpy
from numpy.typing import NDArray

DTYPES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}


def filled(table: NDArray[numpy.float64], count: int, dtype: str) -> Any:
    """A buffer of `count` elements that repeats the table."""
    if dtype != "bfloat16":
        return numpy.resize(table.astype(dtype), count)
    import torch

    return torch.from_numpy(numpy.resize(table.astype(numpy.float32), count)).to(torch.bfloat16)


def copied(buffer: Any) -> Any:
    return buffer.copy() if isinstance(buffer, numpy.ndarray) else buffer.clone()


def overwrite(buffer: Any, source: Any) -> None:
    buffer[:] = source


def differing(one: Any, other: Any) -> int:
    """How many elements are not equal."""
    return int((one != other).sum())
