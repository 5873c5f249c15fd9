"""Any tensor of a model as one that a ring carries: its bits as integers, each of them once."""

import torch
from torch import Tensor

INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bits(tensor: Tensor) -> Tensor:
    """A view of it: what is written there is written into the tensor, be it of booleans, complex or expanded."""
    for dimension, stride in enumerate(tensor.stride()):
        if not stride and tensor.shape[dimension] > 1:  # expanded: the same elements again and again
            tensor = tensor.narrow(dimension, 0, 1)
    if tensor.dtype == torch.complex128:
        tensor = torch.view_as_real(tensor)
    return tensor.view(INTEGER_OF_SIZE[tensor.itemsize])
