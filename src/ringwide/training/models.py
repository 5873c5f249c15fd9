"""The networks that can be trained."""

from itertools import pairwise

from torch import nn


def mlp(inputs: int, hidden_sizes: tuple[int, ...], outputs: int) -> nn.Sequential:
    sizes = (inputs, *hidden_sizes, outputs)
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
