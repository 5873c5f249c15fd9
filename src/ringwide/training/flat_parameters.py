"""A model's parameters and gradients, laid into a few flat tensors.

A bucket's gradients lie in memory as they travel, so nothing is gathered before a collective and nothing scattered
after it; and an optimizer needs a few operations for each bucket instead of for each parameter.

Buckets are filled from the last parameter to the first, about the order in which a backward pass finishes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class FlatBucket:
    """Parameters of one dtype that travel together. Those of the model are views of these two flat tensors."""

    name: str
    parameters: Tensor
    gradients: Tensor
    members: tuple[nn.Parameter, ...]

    @property
    def nbytes(self) -> int:
        return self.gradients.nbytes


def flatten(model: nn.Module, bucket_bytes: int) -> list[FlatBucket]:
    """Move what the model learns into buckets of about `bucket_bytes`. Frozen parameters stay where they are."""
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [_bucket(index, members) for index, members in enumerate(_grouped(learnt[::-1], bucket_bytes))]


def _grouped(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> Iterator[list[nn.Parameter]]:
    group: list[nn.Parameter] = []
    for parameter in parameters:
        full = sum(member.nbytes for member in group) + parameter.nbytes > bucket_bytes
        if group and (full or parameter.dtype != group[0].dtype):
            yield group
            group = []
        group.append(parameter)
    if group:
        yield group


def _bucket(index: int, members: Sequence[nn.Parameter]) -> FlatBucket:
    count = sum(member.numel() for member in members)
    parameters = torch.empty(count, dtype=members[0].dtype)
    gradients = torch.zeros_like(parameters)
    start = 0
    for member in members:
        part = slice(start, start + member.numel())
        parameters[part].copy_(member.data.flatten())
        member.data = parameters[part].view(member.shape)
        member.grad = gradients[part].view(member.shape)
        start = part.stop
    return FlatBucket(f"gradients {index}", parameters, gradients, tuple(members))
