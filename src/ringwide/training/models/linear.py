"""One layer: the least that can learn."""

from math import prod

from torch import nn


def linear(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    layer = nn.Linear(prod(inputs), outputs)
    # Alone where nothing is to be flattened: the calls around it would take as long as its arithmetic.
    return layer if len(inputs) == 1 else nn.Sequential(nn.Flatten(), layer)
