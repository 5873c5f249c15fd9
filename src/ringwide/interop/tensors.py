"""Tensors of every dtype that torch has, as tensors of a dtype that the ring carries: views of the same memory."""

from collections.abc import Sequence

import torch
from torch.distributed import ReduceOp

from ringwide.buckets import DTYPES, INTEGERS

_OPERATIONS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "mean",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}
_CARRIED = frozenset(getattr(torch, name) for name in DTYPES)
_INTEGERS = frozenset(getattr(torch, name) for name in INTEGERS)
_BITS_OF_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_OF_BOOLS = {"sum": "max"}
"""True and True is true: as numbers they would be two."""


def operation_of(op: ReduceOp | ReduceOp.RedOpType, dtype: torch.dtype) -> str:
    """The ring's word for it."""
    kind = getattr(op, "op", op)
    if kind not in _OPERATIONS:
        raise NotImplementedError(
            f"the backend ringwide does not support {kind}; it knows {', '.join(str(known) for known in _OPERATIONS)}"
        )
    word = _OPERATIONS[kind]
    if word == "mean" and dtype in _INTEGERS:
        return "quotient"  # as NCCL does it; Lightning averages how many samples a batch had
    return _OF_BOOLS.get(word, word) if dtype is torch.bool else word


def as_numbers(tensor: torch.Tensor, op: str) -> torch.Tensor:
    """For a sum, a minimum and so on: the numbers must mean the same."""
    if tensor.dtype in _CARRIED:
        return tensor
    if tensor.dtype is torch.bool:
        return tensor.view(torch.uint8)
    if tensor.is_complex() and op in ("sum", "mean"):
        return torch.view_as_real(tensor)
    raise TypeError(f"the backend ringwide cannot take the {op} of {tensor.dtype}; convert it before")


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """For everything that is only moved."""
    if tensor.dtype in _CARRIED:
        return tensor
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.view(_BITS_OF_BYTES[tensor.element_size()])


def alike(tensors: Sequence[torch.Tensor]) -> bool:
    """Have all the same number of elements?"""
    return len({tensor.numel() for tensor in tensors}) <= 1
