"""Assignment of error feedback to the buckets of DDP."""

import torch
from torch import nn

from ringwide.torch.comm_hook import Layouts


def parameters(count: int) -> list[torch.Tensor]:
    return [nn.Parameter(torch.zeros(2)) for _ in range(count)]


def test_the_same_parameters_are_the_same_bucket() -> None:
    layouts, first, second = Layouts(), parameters(3), parameters(2)
    assert [layouts.number_of(bucket) for bucket in (first, second, first, second)] == [0, 1, 0, 1]


def test_buckets_that_ddp_has_rebuilt_are_others() -> None:
    """Even if they have the same shape: each number would be added to another parameter."""
    layouts, first = Layouts(), parameters(3)
    assert [layouts.number_of(bucket) for bucket in (first, first[::-1], first[::-1])] == [0, 1, 1]


def test_parameters_in_the_place_of_others_are_others() -> None:
    """Where memory is used again differs from rank to rank, and their numbers must not."""
    layouts = Layouts()
    for number in range(20):
        assert layouts.number_of(parameters(1)) == number  # each is gone before the next one comes
