"""Data of a user's own, from a function that returns what to train on and what is held out.

Either is a pair of tensors or arrays, inputs and targets, or anything with a length whose items are such pairs.
"""

from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from ringwide.errors import ConfigError
from ringwide.training.data.samples import Data, TensorSamples
from ringwide.training.own import call

KEY = "training.data"
EXPECTED = "it should return (train, test), each (inputs, targets) as tensors or arrays, or a dataset of such pairs"
Array = Tensor | numpy.ndarray


def own_data(path: str, options: Mapping[str, Any]) -> Data:
    given = call(path, KEY, options)
    if isinstance(given, Data):
        return given
    where = f"{KEY}: {path!r}"
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ConfigError(f"{where}: returned {_kind(given)}; {EXPECTED}")
    train, test = (_samples(part, f"{where}: {name}") for part, name in zip(given, ("train", "test"), strict=True))
    if train.features.shape[1:] != test.features.shape[1:]:
        raise ConfigError(f"{where}: a sample has shape {_shape(train)} in train, but {_shape(test)} in test")
    return Data(train=train, test=test, inputs=_shape(train), outputs=_outputs(train.labels, test.labels))


def _samples(part: object, where: str) -> TensorSamples:
    inputs, targets = _pair(part, where)
    if not inputs.dim() or not targets.dim() or len(inputs) != len(targets):
        raise ConfigError(
            f"{where}: inputs have shape {tuple(inputs.shape)} and targets {tuple(targets.shape)}; they"
            " should have one row each for every sample"
        )
    if not len(inputs):
        raise ConfigError(f"{where}: has no samples")
    return TensorSamples(inputs, targets)


def _pair(part: object, where: str) -> tuple[Tensor, Tensor]:
    if isinstance(part, tuple | list) and len(part) == 2 and all(isinstance(array, Array) for array in part):
        return _tensor(part[0]), _tensor(part[1])
    if (
        isinstance(part, Array | str | bytes | Mapping)
        or not hasattr(part, "__len__")
        or not hasattr(part, "__getitem__")
    ):
        raise ConfigError(f"{where} is {_kind(part)}; {EXPECTED}")
    return _stacked(part, where)


def _stacked(dataset: Any, where: str) -> tuple[Tensor, Tensor]:
    """By index and not by iteration, which a map-style dataset need not end."""
    items = [dataset[index] for index in range(len(dataset))]
    for index, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ConfigError(f"{where}[{index}] is {_kind(item)}; it should be an input and its target")
    try:
        columns = [[_tensor(item[column]) for item in items] for column in (0, 1)]
        return torch.stack(columns[0]), torch.stack(columns[1])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where}: its samples cannot be stacked: {error}") from error


def _tensor(value: Any) -> Tensor:
    """What torch made is kept as it is. Numbers of numpy and Python become what models expect."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    tensor = torch.as_tensor(numpy.array(value))  # a copy, because it may be read-only
    if tensor.dtype == torch.float64:
        return tensor.float()
    return tensor


def _outputs(*targets: Tensor) -> int:
    if not targets[0].is_floating_point():
        return max(int(target.max()) for target in targets) + 1
    return {1: 1, 2: targets[0].shape[-1]}.get(targets[0].dim(), 0)


def _shape(samples: TensorSamples) -> tuple[int, ...]:
    return tuple(samples.features.shape[1:])


def _kind(value: object) -> str:
    match value:
        case Tensor() | numpy.ndarray():
            return f"a {type(value).__name__} of shape {tuple(value.shape)}"
        case tuple() | list():
            return f"a {type(value).__name__} of {len(value)}"
    return f"of type {type(value).__name__}"
