"""User's data, from a function that returns the samples to train on and those to test on.

Each is a pair of tensors or arrays, inputs and targets, or a dataset: anything with a length whose items are such
pairs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from ringwide.errors import ConfigError
from ringwide.training.samples import Data, TensorSamples
from ringwide.training.user_code import call, guarded

KEY = "training.data"
EXPECTED = "it should return (train, test), each (inputs, targets) as tensors or arrays, or a dataset of such pairs"
Array = Tensor | numpy.ndarray


def load_user_data(path: str, options: Mapping[str, Any]) -> Data:
    given, where = call(path, KEY, options), f"{KEY}: {path!r}"
    if isinstance(given, Data):
        if not len(given.train):
            raise ConfigError(f"{where}: train: has no samples")
        return given
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ConfigError(f"{where}: returned {_a(given)}; {EXPECTED}")
    train, test = _samples(given[0], f"{where}: train"), _samples(given[1], f"{where}: test")
    if _shape(train) != _shape(test):
        raise ConfigError(f"{where}: a sample has shape {_shape(train)} in train, but {_shape(test)} in test")
    return Data(train=train, test=test, inputs=_shape(train), outputs=_outputs(train.labels, test.labels))


def _samples(part: object, where: str) -> TensorSamples:
    inputs, targets = _pair(part, where)
    if not inputs.dim() or not targets.dim() or len(inputs) != len(targets):
        raise ConfigError(
            f"{where}: inputs have shape {tuple(inputs.shape)} and targets {tuple(targets.shape)};"
            " they should have one row each for every sample"
        )
    if not len(inputs):
        raise ConfigError(f"{where}: has no samples")
    # torch takes classes as int64.
    return TensorSamples(inputs, targets if targets.is_floating_point() else targets.long())


def _pair(part: object, where: str) -> tuple[Tensor, Tensor]:
    if isinstance(part, tuple | list) and len(part) == 2 and all(isinstance(array, Array) for array in part):
        return _converted(part[0], where), _converted(part[1], where)
    if not _is_dataset(part):
        raise ConfigError(f"{where} is {_a(part)}; {EXPECTED}")
    items = guarded(_items, where)(part)
    for index, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ConfigError(f"{where}[{index}] is {_a(item)}; it should be an input and its target")
    return _stacked([item[0] for item in items], where), _stacked([item[1] for item in items], where)


def _is_dataset(part: object) -> bool:
    has_items = hasattr(part, "__len__") and hasattr(part, "__getitem__")
    return has_items and not isinstance(part, Tensor | numpy.ndarray | str | bytes | Mapping)


def _items(dataset: Any) -> list[Any]:
    """Items by index: iterating over a dataset need not end."""
    return [dataset[index] for index in range(len(dataset))]


def _stacked(values: Sequence[Any], where: str) -> Tensor:
    tensors = [_converted(value, where) for value in values]
    shapes = dict.fromkeys(tuple(tensor.shape) for tensor in tensors)
    if len(shapes) > 1:
        raise ConfigError(f"{where}: has samples of different shapes: {', '.join(map(str, list(shapes)[:3]))}")
    return torch.stack(tensors) if tensors else torch.empty(0)


def _converted(value: Any, where: str) -> Tensor:
    """Tensor of a value. Tensors keep their dtype; float64 of numpy and Python, their default, becomes float32."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = numpy.asarray(value)
        return torch.tensor(array, dtype=torch.float32 if array.dtype == numpy.float64 else None)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: is not made of numbers: {' '.join(str(error).split())}") from error


def _outputs(*targets: Tensor) -> int:
    if not targets[0].is_floating_point():
        return max(int(target.max()) for target in targets) + 1
    return {1: 1, 2: targets[0].shape[-1]}.get(targets[0].dim(), 0)


def _shape(samples: TensorSamples) -> tuple[int, ...]:
    return tuple(samples.features.shape[1:])


def _a(value: object) -> str:
    match value:
        case None:
            return "None"
        case Tensor():
            return f"a tensor of shape {tuple(value.shape)}"
        case numpy.ndarray():
            return f"an array of shape {value.shape}"
        case tuple() | list():
            return f"a {type(value).__name__} of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
