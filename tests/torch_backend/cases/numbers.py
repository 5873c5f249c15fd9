"""The dtypes and operations that a backend is asked for, what ranks bring, and what must come out.

All numbers are small and whole, so that every dtype holds every result: what must come out is known to the bit.
"""

from collections.abc import Callable
from functools import reduce

import torch
import torch.distributed as dist

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool, torch.complex64)

ARITHMETIC = ("sum", "avg", "product", "min", "max")
BITWISE = ("band", "bor", "bxor")
OPERATIONS = {name: getattr(dist.ReduceOp, name.upper()) for name in (*ARITHMETIC, *BITWISE)}

COUNT = 37  # no multiple of anything, so that no rank's part is like another's

_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def makes_sense(operation: str, dtype: torch.dtype) -> bool:
    if dtype is torch.complex64:
        return operation in ("sum", "avg")  # torch itself refuses the others
    if dtype is torch.bool:
        return operation in ("sum", "product", "min", "max", *BITWISE)
    return dtype in INTEGERS if operation in BITWISE else operation != "avg" or dtype in FLOATS


def brought_by(rank: int, dtype: torch.dtype, count: int = COUNT) -> torch.Tensor:
    """1 to 4, another order for every rank."""
    numbers = (torch.arange(count) * (rank + 1) + rank) % 4 + 1
    if dtype is torch.bool:
        return numbers > 2
    if dtype is torch.complex64:
        return torch.complex(numbers.float(), -numbers.float())
    return numbers.to(dtype)


def combined(operation: str, dtype: torch.dtype, ranks: range | list[int], count: int = COUNT) -> torch.Tensor:
    parts = [brought_by(rank, dtype, count) for rank in ranks]
    if dtype is torch.bool:  # a truth value has no carry: a sum is `or`, a product `and`
        operation = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}.get(operation, operation)
    total = reduce(_COMBINE[operation], parts)
    return total / len(parts) if operation == "avg" else total


def close(actual: torch.Tensor, expected: torch.Tensor, operation: str, what: str) -> None:
    """To the bit; but means are rounded, by each backend in its own order."""
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(actual.dtype, 1e-6) if operation == "avg" else 0.0
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=0, msg=lambda text: f"{what}: {text}")
