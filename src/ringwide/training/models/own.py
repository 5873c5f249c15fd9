"""A model of a user's own, whose mistakes are told in one sentence."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig, is_import_path
from ringwide.training.own import guarded

Forward = Callable[[Tensor], Tensor]


def forward_of(config: TrainingConfig, model: nn.Module) -> Forward:
    """How to call it. Models that are built in are called as they are: nothing is checked in every step."""
    if not is_import_path(config.model):
        return model
    where = f"training.model: {config.model!r}"
    call = guarded(model, where)

    def forward(inputs: Tensor) -> Tensor:
        try:
            outputs = call(inputs)
        except ConfigError as error:
            raise ConfigError(f"{error}{_cure(config, model, inputs)}") from error.__cause__
        _check(outputs, where)
        return outputs  # type: ignore[no-any-return]

    return forward


def _check(outputs: object, where: str) -> None:
    if not isinstance(outputs, Tensor):
        raise ConfigError(f"{where}: its forward returned a {type(outputs).__name__}; it should return a tensor")
    if torch.is_grad_enabled() and not outputs.requires_grad:
        raise ConfigError(
            f"{where}: its forward returned a tensor without gradients, so nothing can be learnt;"
            " look for detach, no_grad, numpy or argmax in it"
        )


def _cure(config: TrainingConfig, model: nn.Module, inputs: Tensor) -> str:
    """Batch normalisation cannot learn from one sample, which the last step of an epoch may leave for a rank."""
    if not model.training or len(inputs) != 1 or config.batch_size == 1:
        return ""
    return "; this batch has one sample: training.drop_last: true leaves out the last, smaller step of an epoch"
