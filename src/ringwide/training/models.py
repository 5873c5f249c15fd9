"""Models that an experiment can name, sized for its data, and the user's own. The transformer follows nanoGPT."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from math import isqrt, prod

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.nn.parameter import is_lazy

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig, is_import_path
from ringwide.training.samples import Data
from ringwide.training.user_code import call, guarded


def build_model(config: TrainingConfig, data: Data) -> nn.Module:
    """Model that an experiment names, sized for its data."""
    if is_import_path(config.model):
        return _user_model(config, data)
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


def _check_fits(config: TrainingConfig, data: Data) -> None:
    """Check that the user's data has the shape and dtype that a built-in model needs."""
    where = f"training.data: {config.data!r}"
    inputs, _ = data.train.batch(torch.zeros(1, dtype=torch.int64))
    if data.outputs < 1:
        raise ConfigError(f"{where}: how many outputs model {config.model!r} needs cannot be seen from its targets")
    if config.model == "transformer":
        _check_text(inputs, data, where)
    elif not data.inputs or inputs.dtype != torch.float32:
        raise ConfigError(
            f"{where}: inputs are {_described(inputs)}; model {config.model!r} needs float32 of shape (n, ...)"
        )


def _check_text(inputs: Tensor, data: Data, where: str) -> None:
    if len(data.inputs) != 1 or inputs.dtype not in (torch.int32, torch.int64):
        raise ConfigError(
            f"{where}: inputs are {_described(inputs)}; a transformer needs int64 of shape (n, characters)"
        )
    lowest, highest = int(inputs.min()), int(inputs.max())
    if lowest < 0 or highest >= data.outputs:
        raise ConfigError(
            f"{where}: inputs go from {lowest} to {highest},"
            f" but a transformer with {data.outputs} outputs takes 0 to {data.outputs - 1}"
        )


def _described(inputs: Tensor) -> str:
    shape = ", ".join(["n", *map(str, inputs.shape[1:])])
    return f"{str(inputs.dtype).removeprefix('torch.')} of shape ({shape})"


def linear(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    layer = nn.Linear(prod(inputs), outputs)
    # Without Flatten where possible: the extra calls would take as long as the arithmetic.
    return layer if len(inputs) == 1 else nn.Sequential(nn.Flatten(), layer)


def mlp(inputs: tuple[int, ...], hidden_sizes: tuple[int, ...], outputs: int) -> nn.Sequential:
    sizes = (prod(inputs), *hidden_sizes, outputs)
    layers: list[nn.Module] = [] if len(inputs) == 1 else [nn.Flatten()]
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


# -- convolutional network


class Pictures(nn.Module):
    """Reshapes samples to channels, height and width."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.reshape(len(inputs), *self.shape)


def cnn(inputs: tuple[int, ...], channels: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Small convolutional network: each 3x3 convolution is followed by a pooling that halves the picture."""
    before, height, width = picture_shape(inputs)
    layers: list[nn.Module] = [Pictures((before, height, width))]
    for after in channels:
        layers += [nn.Conv2d(before, after, kernel_size=3, padding=1), nn.ReLU()]
        if min(height, width) > 1:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        before = after
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * height * width, outputs))


def picture_shape(inputs: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width."""
    match inputs:
        case (channels, height, width):
            return channels, height, width
        case (height, width):
            return 1, height, width
        case (pixels,) if isqrt(pixels) ** 2 == pixels:
            return 1, isqrt(pixels), isqrt(pixels)
    raise ConfigError(
        f"training.model: 'cnn': samples of shape {inputs} are not pictures; they should be (channels, height, width),"
        " (height, width) or the pixels of a square"
    )


# -- transformer

SPREAD = 0.02  # standard deviation of the initial parameters


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, dropout: float, spread: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value = _layer(width, 3 * width)
        self.answer = _layer(width, width, spread)

    def forward(self, inputs: Tensor) -> Tensor:
        batch, places, width = inputs.shape
        by_head = self.query_key_value(inputs).view(batch, places, 3, self.heads, width // self.heads)
        query, key, value = by_head.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        heard = scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        answer: Tensor = self.answer(heard.transpose(1, 2).reshape(batch, places, width))
        return answer


class Block(nn.Module):
    """Transformer block: attention and a feed-forward layer, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float, spread: float) -> None:
        super().__init__()
        self.before_attention, self.before_thought = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, spread)
        self.thought, self.conclusion = _layer(width, 4 * width), _layer(4 * width, width, spread)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs + self.dropout(self.attention(self.before_attention(inputs)))
        thought = gelu(self.thought(self.before_thought(inputs)))
        result: Tensor = inputs + self.dropout(self.conclusion(thought))
        return result


class Transformer(nn.Module):
    """Small decoder that predicts each next character from those before it."""

    def __init__(self, *, vocabulary: int, context: int, layers: int, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        spread = SPREAD / (2 * layers) ** 0.5  # so that the sum over blocks does not grow with their number
        self.characters, self.places = _embedding(vocabulary, width), _embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout, spread) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        # The embedding and the output layer share their weights.
        self.head.weight = self.characters.weight

    def forward(self, characters: Tensor) -> Tensor:
        places = self.places.weight[: characters.shape[1]]
        guesses: Tensor = self.head(self.norm(self.blocks(self.dropout(self.characters(characters) + places))))
        return guesses


def _layer(inputs: int, outputs: int, spread: float = SPREAD) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=spread)
    nn.init.zeros_(layer.bias)
    return layer


def _embedding(entries: int, width: int) -> nn.Embedding:
    embedding = nn.Embedding(entries, width)
    nn.init.normal_(embedding.weight, std=SPREAD)
    return embedding


# -- user's model

Forward = Callable[[Tensor], Tensor]


def _user_model(config: TrainingConfig, data: Data) -> nn.Module:
    offered = {"inputs": data.inputs, "outputs": data.outputs}
    model = call(config.model, "training.model", config.model_options, offered)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"training.model: {config.model!r}: returned a {type(model).__name__}; it should return a torch.nn.Module"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"training.model: {config.model!r}: has no parameters that can be trained")
    if _lazy(model):
        _initialize(model, data, f"training.model: {config.model!r}")
    _check_tensors(model, f"training.model: {config.model!r}")
    return model


def _check_tensors(model: nn.Module, where: str) -> None:
    """Check that parameters can move into buckets, and that nodes can send each other all of a model."""
    named: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in named.items():
        if trouble := _unfit(tensor):
            raise ConfigError(f"{where}: {name!r} {trouble}")
    if tied := _tied_by_memory(named):
        raise ConfigError(
            f"{where}: {tied[0]!r} and {tied[1]!r} share memory, but are not the same tensor: they would go different"
            " ways, as training moves parameters to other memory; to tie two layers, let them have one parameter,"
            " as in `decoder.weight = encoder.weight`, without .data; else clone() one of them"
        )


def _unfit(tensor: Tensor) -> str:
    if tensor.is_meta:
        return "has no numbers, as its device is 'meta'; create it on the CPU"
    if tensor.layout is not torch.strided:
        return "is sparse; keep its indices and values as buffers instead, and build it in forward"
    if not tensor.requires_grad and (tensor.is_conj() or tensor.is_neg()):
        return "is a conjugated or negated view; keep its resolve_conj().resolve_neg() instead"
    return ""


def _tied_by_memory(named: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Two that have a number in common, which is trained. Parts of one tensor, such as its rows, have none."""
    by_storage: dict[int, list[str]] = {}
    for name, tensor in named.items():
        if tensor.numel():
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    for names in by_storage.values():
        if len(names) > 1 and any(named[name].requires_grad for name in names):
            unit = min(named[name].itemsize for name in names)
            owners = torch.full((named[names[0]].untyped_storage().nbytes() // unit,), -1)
            for index, name in enumerate(names):
                places = _places(named[name]) * named[name].itemsize // unit
                found = owners[places].unique().tolist()  # type: ignore[no-untyped-call]
                for other in (names[owner] for owner in found if owner >= 0):
                    if named[name].requires_grad or named[other].requires_grad:
                        return other, name
                owners[places] = index
    return None


def _places(tensor: Tensor) -> Tensor:
    """Where in its storage each number of a tensor is, as a count of such numbers."""
    places = torch.tensor([tensor.storage_offset()])
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = (places[:, None] + stride * torch.arange(size)).flatten()
    return places


def _lazy(model: nn.Module) -> list[str]:
    """Names of parameters and buffers without a shape, which lazy modules get from their first input."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in named if is_lazy(tensor)]


@torch.no_grad()
def _initialize(model: nn.Module, data: Data, where: str) -> None:
    """Give lazy modules their shapes, with the first sample as input."""
    inputs, _ = data.train.batch(torch.zeros(1, dtype=torch.int64))
    with evaluating(model):  # so that running statistics do not change
        guarded(model, f"{where}: its lazy parameters take their shapes from the first sample")(inputs)
    if unused := _lazy(model):
        raise ConfigError(
            f"{where}: {unused[0]!r} has no shape yet, because its forward did not use it for the first sample;"
            " give that layer its sizes, or remove it"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the length of the block. Afterwards each module is as before: some may be frozen."""
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def forward_of(config: TrainingConfig, model: nn.Module) -> Forward:
    """Forward function of a model. A user's model is checked in every call; a built-in one is returned as it is."""
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
    """Hint for batch normalisation, which cannot learn from one sample, as the last step of an epoch may have."""
    if not model.training or len(inputs) != 1 or config.batch_size == 1:
        return ""
    return "; this batch has one sample: training.drop_last: true leaves out the last, smaller step of an epoch"
