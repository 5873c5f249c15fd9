"""The model an experiment asks for, as large as its data needs it."""

import torch
from torch import Tensor, nn

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig, is_import_path
from ringwide.training.data.samples import Data
from ringwide.training.models.cnn import cnn
from ringwide.training.models.linear import linear
from ringwide.training.models.mlp import mlp
from ringwide.training.models.transformer import Transformer
from ringwide.training.own import call


def build_model(config: TrainingConfig, data: Data) -> nn.Module:
    if is_import_path(config.model):
        return _own_model(config, data)
    if is_import_path(config.data):
        _check_fits(config, data)
    match config.model:
        case "linear":
            return linear(data.inputs, data.outputs)
        case "mlp":
            return mlp(data.inputs, config.hidden_sizes, data.outputs)
        case "cnn":
            return cnn(data.inputs, config.channels, data.outputs)
        case _:
            return _transformer(config, data)


def _transformer(config: TrainingConfig, data: Data) -> nn.Module:
    return Transformer(
        vocabulary=data.outputs,
        context=data.inputs[0],
        layers=config.layers,
        heads=config.heads,
        width=config.width,
        dropout=config.dropout,
    )


def _own_model(config: TrainingConfig, data: Data) -> nn.Module:
    offered = {"inputs": data.inputs, "outputs": data.outputs}
    model = call(config.model, "training.model", config.model_options, offered)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"training.model: {config.model!r}: returned a {type(model).__name__}; it should return a torch.nn.Module"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"training.model: {config.model!r}: has no parameters that can be trained")
    return model


def _check_fits(config: TrainingConfig, data: Data) -> None:
    """Data of a user's own may be anything; a model that is built in is for some shapes and types."""
    where = f"training.data: {config.data!r}"
    inputs, _ = data.train.batch(torch.zeros(1, dtype=torch.int64))
    if data.outputs < 1:
        raise ConfigError(f"{where}: how many outputs model {config.model!r} needs cannot be seen from its targets")
    if config.model == "transformer":
        _check_text(inputs, data, where)
    elif not data.inputs or inputs.dtype != torch.float32:
        raise ConfigError(
            f"{where}: inputs are {_told(inputs)}; model {config.model!r} needs float32 of shape (n, ...)"
        )


def _check_text(inputs: Tensor, data: Data, where: str) -> None:
    if len(data.inputs) != 1 or inputs.dtype not in (torch.int32, torch.int64):
        raise ConfigError(f"{where}: inputs are {_told(inputs)}; a transformer needs int64 of shape (n, characters)")
    lowest, highest = int(inputs.min()), int(inputs.max())
    if lowest < 0 or highest >= data.outputs:
        raise ConfigError(
            f"{where}: inputs go from {lowest} to {highest},"
            f" but a transformer with {data.outputs} outputs takes 0 to {data.outputs - 1}"
        )


def _told(inputs: Tensor) -> str:
    shape = ", ".join(["n", *map(str, inputs.shape[1:])])
    return f"{str(inputs.dtype).removeprefix('torch.')} of shape ({shape})"
