"""Flat parameters, the optimizers that update them, gradient clipping, and the schedule of the learning rate.

Optimizers have the arithmetic of `torch.optim`, to the bit. They are written out because creating a `torch.optim`
optimizer imports torch's compiler, which adds 1.4 s to every node's start, and the nodes of one machine share its
cores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import cos, fsum, isfinite, pi
from typing import Protocol

import torch
from torch import Tensor, nn

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig


@dataclass(frozen=True, slots=True)
class FlatBucket:
    """Parameters of one dtype that are exchanged together. The model's tensors are views of these two flat ones.

    A complex number is two real ones here, as it is in torch's optimizers.
    """

    name: str
    parameters: Tensor
    gradients: Tensor
    members: tuple[nn.Parameter, ...]
    names: tuple[str, ...]  # of the members, in the model

    @property
    def nbytes(self) -> int:
        return self.gradients.nbytes


def flatten(model: nn.Module, bucket_bytes: int) -> list[FlatBucket]:
    """Move the trainable parameters into buckets of about `bucket_bytes`. Frozen ones stay where they are."""
    names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = _grouped([*names][::-1], bucket_bytes)
    return [_bucket(index, members, [names[member] for member in members]) for index, members in enumerate(groups)]


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


def _bucket(index: int, members: Sequence[nn.Parameter], names: Sequence[str]) -> FlatBucket:
    real = [_real(member.data) for member in members]
    parameters = torch.empty(sum(numbers.numel() for numbers in real), dtype=real[0].dtype)
    gradients = torch.zeros_like(parameters)
    start = 0
    for member, numbers in zip(members, real, strict=True):
        part = slice(start, start + numbers.numel())
        parameters[part].copy_(numbers.flatten())
        member.data = _shaped(parameters[part], member)
        member.grad = _shaped(gradients[part], member)
        start = part.stop
    return FlatBucket(f"gradients {index}", parameters, gradients, tuple(members), tuple(names))


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _shaped(flat: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(flat.view(*like.shape, 2)) if like.is_complex() else flat.view(like.shape)


# -- optimizers

EPSILON = 1e-8  # torch's default


class Optimizer(Protocol):
    def step(self, learning_rate: float) -> None:
        """Update the parameters from the gradients, which stay unchanged."""

    def state(self) -> dict[str, Tensor]:
        """State by fixed names. The tensors are not copies: copying into them restores the state."""


def make_optimizer(config: TrainingConfig, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> Optimizer:
    # Detached once, so that no step needs torch.no_grad.
    pairs = [(p.detach(), g) for p, g in zip(parameters, gradients, strict=True)]
    if config.optimizer == "sgd":
        if not config.momentum and not config.weight_decay:
            return PlainSgd(pairs)
        return Sgd(pairs, momentum=config.momentum, weight_decay=config.weight_decay)
    return Adam(pairs, betas=config.betas, weight_decay=config.weight_decay, decoupled=config.optimizer == "adamw")


Pairs = Sequence[tuple[Tensor, Tensor]]


class PlainSgd:
    """SGD with one operation per tensor, for models so small that a step is mostly calls."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs

    def step(self, learning_rate: float) -> None:
        for parameter, gradient in self._pairs:
            parameter.add_(gradient, alpha=-learning_rate)

    def state(self) -> dict[str, Tensor]:
        return {}


class Sgd:
    """SGD with momentum and weight decay."""

    def __init__(self, pairs: Pairs, *, momentum: float, weight_decay: float) -> None:
        self._momentum, self._weight_decay = momentum, weight_decay
        self._parts = [(parameter, gradient, torch.zeros_like(parameter)) for parameter, gradient in pairs]

    def step(self, learning_rate: float) -> None:
        for parameter, gradient, velocity in self._parts:
            if self._weight_decay:
                gradient = gradient.add(parameter, alpha=self._weight_decay)
            velocity.mul_(self._momentum).add_(gradient)
            parameter.add_(velocity, alpha=-learning_rate)

    def state(self) -> dict[str, Tensor]:
        return {f"velocity.{number}": velocity for number, (_, _, velocity) in enumerate(self._parts)}


class Adam:
    """Adam. `decoupled`: weights decay apart from the gradient, which is AdamW."""

    def __init__(self, pairs: Pairs, *, betas: tuple[float, float], weight_decay: float, decoupled: bool) -> None:
        self._betas, self._weight_decay, self._decoupled = betas, weight_decay, decoupled
        self._steps = torch.zeros((), dtype=torch.int64)
        self._parts = [(p, g, torch.zeros_like(p), torch.zeros_like(p)) for p, g in pairs]

    def step(self, learning_rate: float) -> None:
        self._steps += 1
        steps, (keep_mean, keep_square) = int(self._steps), self._betas
        length = learning_rate / (1 - keep_mean**steps)
        correction = (1 - keep_square**steps) ** 0.5
        for parameter, gradient, mean, square in self._parts:
            gradient = self._decayed(parameter, gradient, learning_rate)
            mean.lerp_(gradient, 1 - keep_mean)
            square.mul_(keep_square).addcmul_(gradient, gradient, value=1 - keep_square)
            parameter.addcdiv_(mean, square.sqrt().div_(correction).add_(EPSILON), value=-length)

    def _decayed(self, parameter: Tensor, gradient: Tensor, learning_rate: float) -> Tensor:
        if not self._weight_decay:
            return gradient
        if self._decoupled:
            parameter.mul_(1 - learning_rate * self._weight_decay)
            return gradient
        return gradient.add(parameter, alpha=self._weight_decay)

    def state(self) -> dict[str, Tensor]:
        found = {"steps": self._steps}
        for number, (_, _, mean, square) in enumerate(self._parts):
            found |= {f"mean.{number}": mean, f"square.{number}": square}
        return found


# -- clipping

CLIP_EPSILON = 1e-6  # torch's


def squares_of_part(buckets: Sequence[FlatBucket], rank: int, size: int) -> float:
    """Sum of the squares of this rank's part of the gradients. The parts of all ranks make up the whole."""
    return fsum(_norm_of_part(bucket.gradients, rank, size) ** 2 for bucket in buckets)


def _norm_of_part(gradients: Tensor, rank: int, size: int) -> float:
    count = gradients.numel()
    part = gradients[rank * count // size : (rank + 1) * count // size]
    return float(torch.linalg.vector_norm(part, dtype=torch.float64))


def clip_factor(norm: float, limit: float, *, step: int) -> float:
    """Factor that scales gradients of this norm down to the limit, as `torch.nn.utils.clip_grad_norm_` does."""
    if not isfinite(norm):
        raise ConfigError(
            f"training.clip_norm: {limit:g}: in step {step} the norm of the gradients is {norm}, which no factor brings"
            " down to that; the step was not made. Lower training.learning_rate, or look for NaN and infinity in the"
            " data and the loss"
        )
    return min(1.0, limit / (norm + CLIP_EPSILON))


# -- schedule


def learning_rate_at(config: TrainingConfig, step: int, last_step: int | None) -> float:
    """Learning rate: rises during `warmup_steps`, then is constant, or decays until the end and stays there.

    Steps count from 1. At least one step has the full rate, so that a single step never has length zero.
    """
    if step < config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    start, end = max(1, config.warmup_steps), config.decay_steps or last_step
    if config.schedule == "constant" or end is None or step <= start:
        return config.learning_rate
    if step >= end:
        return config.final_learning_rate
    fallen = (step - start) / (end - start)
    if config.schedule == "cosine":
        fallen = (1 - cos(pi * fallen)) / 2
    return config.learning_rate + fallen * (config.final_learning_rate - config.learning_rate)
