"""Stochastic gradient descent with momentum, the arithmetic of `torch.optim.SGD`.

Written out because making a `torch.optim` optimizer imports torch's compiler: 1.4 s of every node's start, and the
nodes of one machine share its cores.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class Sgd:
    def __init__(self, parameters: Sequence[Tensor], *, learning_rate: float, momentum: float) -> None:
        self._learning_rate, self._momentum = learning_rate, momentum
        self._velocities = [(parameter, torch.zeros_like(parameter)) for parameter in parameters]

    @torch.no_grad()
    def step(self) -> None:
        for parameter, velocity in self._velocities:
            velocity.mul_(self._momentum).add_(_gradient(parameter))
            parameter.add_(velocity, alpha=-self._learning_rate)


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise ValueError(f"a parameter of shape {tuple(parameter.shape)} has no gradient: call backward first")
    return parameter.grad
