"""Tensors of every dtype that torch has, as tensors of a dtype that the ring carries: views of the same memory.

Detached ones: autograd may turn a tensor into one that requires a gradient when its operation is already under way.
"""

from collections.abc import Sequence

import torch
from torch.distributed import ReduceOp

from ringwide.tensors.arithmetic import DTYPES, INTEGERS
from ringwide.tensors.leaves import leaf_of

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


def operation_on(tensors: Sequence[torch.Tensor], op: ReduceOp | ReduceOp.RedOpType) -> str:
    """The ring's one word for all of them: a sum of truths is not what a sum of numbers is."""
    words = {operation_of(op, tensor.dtype): tensor.dtype for tensor in tensors}
    if len(words) > 1:
        dtypes = " and ".join(map(str, words.values()))
        raise TypeError(
            f"the backend ringwide cannot reduce {dtypes} together by {getattr(op, 'op', op)}; reduce them apart"
        )
    return next(iter(words), "sum")


def as_numbers(tensor: torch.Tensor, op: str) -> torch.Tensor:
    """For a sum, a minimum and so on: the numbers must mean the same."""
    tensor = tensor.detach()
    if tensor.dtype in _CARRIED:
        return tensor
    if tensor.dtype is torch.bool:
        return tensor.view(torch.uint8)
    if tensor.is_complex() and op in ("sum", "mean"):
        return torch.view_as_real(tensor)
    raise TypeError(f"the backend ringwide cannot take the {op} of {tensor.dtype}; convert it before")


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """For everything that is only moved."""
    tensor = tensor.detach()
    if tensor.dtype in _CARRIED:
        return tensor
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.view(_BITS_OF_BYTES[tensor.element_size()])


def require_places(targets: Sequence[torch.Tensor], dtype: torch.dtype, what: str) -> None:
    """Whatever would fail while the results are written must fail before: then none of them has changed."""
    for index, target in enumerate(targets):
        if target.dtype is not dtype:
            raise TypeError(
                f"{what}: output {index} is of {target.dtype}, and what comes is of {dtype}; make them equal"
            )
        leaf_of(as_bits(target), f"output {index}").require_writable(f"output {index}")


def write(target: torch.Tensor, numbers: torch.Tensor) -> None:
    """Into a tensor of the caller's, on the loop's thread, where neither its inference mode nor its no_grad holds."""
    with torch.inference_mode(target.is_inference()), torch.no_grad():
        target.copy_(numbers.view(target.shape))


def alike(tensors: Sequence[torch.Tensor]) -> bool:
    """Have all the same number of elements?"""
    return len({tensor.numel() for tensor in tensors}) <= 1
