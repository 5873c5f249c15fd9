"""Layers with nothing but numbers between them."""

from itertools import pairwise
from math import prod

from torch import nn


def mlp(inputs: tuple[int, ...], hidden_sizes: tuple[int, ...], outputs: int) -> nn.Sequential:
    sizes = (prod(inputs), *hidden_sizes, outputs)
    layers: list[nn.Module] = [] if len(inputs) == 1 else [nn.Flatten()]
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
