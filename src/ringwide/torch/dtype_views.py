"""Views of torch tensors of any dtype as tensors of a dtype that the ring carries, on the same memory.

The views are detached: autograd may make a tensor require a gradient while its operation is under way.
"""

from collections.abc import Sequence

import torch
from torch.distributed import ReduceOp

from ringwide.tensors.arithmetic import DTYPES, INTEGERS, OpName
from ringwide.tensors.leaves import leaf_of

_OPERATIONS: dict[object, OpName] = {
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
_OF_BOOLS: dict[OpName, OpName] = {"sum": "max"}
"""The sum of booleans is their or: True + True is True, while the sum of their bytes would be 2."""


def operation_of(op: ReduceOp | ReduceOp.RedOpType, dtype: torch.dtype) -> OpName:
    """Name of the operation in the ring."""
    kind = getattr(op, "op", op)
    if kind not in _OPERATIONS:
        raise NotImplementedError(
            f"the backend ringwide does not support {kind}; it knows {', '.join(str(known) for known in _OPERATIONS)}"
        )
    op_name = _OPERATIONS[kind]
    if op_name == "mean" and dtype in _INTEGERS:
        return "quotient"  # as NCCL does; Lightning averages batch sizes
    return _OF_BOOLS.get(op_name, op_name) if dtype is torch.bool else op_name


def operation_on(tensors: Sequence[torch.Tensor], op: ReduceOp | ReduceOp.RedOpType) -> OpName:
    """Name of the operation in the ring, one for all tensors: a sum of booleans differs from one of numbers."""
    names = {operation_of(op, tensor.dtype): tensor.dtype for tensor in tensors}
    if len(names) > 1:
        dtypes = " and ".join(map(str, names.values()))
        raise TypeError(
            f"the backend ringwide cannot reduce {dtypes} together by {getattr(op, 'op', op)}; reduce them separately"
        )
    return next(iter(names), "sum")


def as_numbers(tensor: torch.Tensor, op: str) -> torch.Tensor:
    """View for a reduction, in which the numbers keep their meaning."""
    tensor = tensor.detach()
    if tensor.dtype in _CARRIED:
        return tensor
    if tensor.dtype is torch.bool:
        return tensor.view(torch.uint8)
    if tensor.is_complex() and op in ("sum", "mean"):
        return torch.view_as_real(tensor)
    raise TypeError(f"the backend ringwide cannot take the {op} of {tensor.dtype}; convert it before")


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """View for an operation that only moves data."""
    tensor = tensor.detach()
    if tensor.dtype in _CARRIED:
        return tensor
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.view(_BITS_OF_BYTES[tensor.element_size()])


def require_outputs(targets: Sequence[torch.Tensor], dtype: torch.dtype, what: str) -> None:
    """Check the outputs before anything is written: an operation that fails must leave all of them unchanged."""
    for index, target in enumerate(targets):
        if target.dtype is not dtype:
            raise TypeError(
                f"{what}: output {index} is of {target.dtype}, but the result is of {dtype}; make them equal"
            )
        leaf_of(as_bits(target), f"output {index}").require_writable(f"output {index}")


def write(target: torch.Tensor, numbers: torch.Tensor) -> None:
    """Write into the caller's tensor on the loop's thread, where its inference mode and no_grad do not hold."""
    with torch.inference_mode(target.is_inference()), torch.no_grad():
        target.copy_(numbers.view(target.shape))


def alike(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all have the same number of elements."""
    return len({tensor.numel() for tensor in tensors}) <= 1
