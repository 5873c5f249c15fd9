"""Learner of one rank: a model, its data, its loss, and the forward and backward pass of one step."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import fsum, inf, nan, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ringwide.errors import ConfigError
from ringwide.training.config import ClassDim, TrainingConfig, is_import_path
from ringwide.training.models import evaluating, forward_of
from ringwide.training.optimizers import clip_factor, flatten, make_optimizer, squares_of_part
from ringwide.training.samples import Data, SampleShare, are_classes, may_have_target
from ringwide.training.user_code import guarded, resolve

INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bits(tensor: Tensor) -> Tensor:
    """Integer view on the memory of any tensor: of booleans, complex or expanded."""
    for dimension, stride in enumerate(tensor.stride()):
        if not stride and tensor.shape[dimension] > 1:  # expanded: all entries share their memory
            tensor = tensor.narrow(dimension, 0, 1)
    if tensor.dtype == torch.complex128:
        tensor = torch.view_as_real(tensor)
    return tensor.view(INTEGER_OF_SIZE[tensor.itemsize])


# -- loss

LossFunction = Callable[[Tensor, Tensor], "Tensor | tuple[Tensor, float]"]
IGNORED = -100  # torch's default for targets that do not count


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of a batch: its mean over samples, or a mean and the weight that it has among those of other batches."""

    of: LossFunction
    weighs: bool | None = False  # whether it returns weights; None: known after the first step


def loss_function(config: TrainingConfig, data: Data) -> Loss:
    """Loss that an experiment names. Over all batches of a step it is what torch computes of the whole step."""
    match config.loss:
        case "cross_entropy":
            ignores = may_have_target(data.train, config.ignore_index) or may_have_target(
                data.test, config.ignore_index
            )
            weighs = ignores or config.class_weights is not None
            return Loss(CrossEntropy(config, weighs=weighs), weighs)
        case "mse":
            return Loss(mse)
        case path:
            return Loss(_user_loss(path), weighs=None)


def _user_loss(path: str) -> LossFunction:
    where, function = f"training.loss: {path!r}", resolve(path, "training.loss")
    if isinstance(function, nn.Module) and any(each.requires_grad for each in function.parameters()):
        raise ConfigError(f"{where}: has parameters of its own, which nobody would train; make them part of the model")
    if _divides_by_counted(function):
        raise ConfigError(
            f"{where}: its mean is over the targets that count, and nodes may have different numbers of those; write"
            " cross_entropy, or a function of yours that returns the mean and its weight"
        )
    call: Callable[[Tensor, Tensor], Any] = guarded(function, where)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor | tuple[Tensor, float]:
        given = call(outputs, targets)
        if isinstance(given, tuple | list) and len(given) == 2:
            return _checked_mean(given[0], outputs, where), _checked_weight(given[1], where)
        mean = _checked_mean(given, outputs, where)
        if are_classes(targets) and bool((targets == IGNORED).any()):
            raise ConfigError(
                f"{where}: returned a mean alone, but some targets are {IGNORED}, which torch ignores; return the mean"
                f" and its weight, as in `return mean, (targets != {IGNORED}).sum()`"
            )
        return mean

    return loss


def _divides_by_counted(function: object) -> bool:
    known = function is functional.cross_entropy or function is functional.nll_loss
    return known or isinstance(function, nn.CrossEntropyLoss | nn.NLLLoss)


def _checked_mean(given: Any, outputs: Tensor, where: str) -> Tensor:
    if not isinstance(given, Tensor) or given.dim():
        shape = f" of shape {tuple(given.shape)}" if isinstance(given, Tensor) else ""
        raise ConfigError(
            f"{where}: returned a {type(given).__name__}{shape}; it should return the mean over samples, a tensor of"
            " one number, or that and its weight"
        )
    if outputs.requires_grad and not given.requires_grad:
        raise ConfigError(f"{where}: returned a tensor without gradients; look for detach, no_grad or numpy in it")
    return given


def _checked_weight(given: Any, where: str) -> float:
    if not isinstance(given, int | float) and not (isinstance(given, Tensor) and given.numel() == 1):
        raise ConfigError(f"{where}: returned a weight of type {type(given).__name__}; it should be one number")
    weight = float(given.detach() if isinstance(given, Tensor) else given)
    if not 0 <= weight < inf:
        raise ConfigError(f"{where}: returned the weight {weight}; it should be 0 or more, and finite")
    return weight


class CrossEntropy:
    """Cross entropy as in torch, with the weight of each batch's mean where targets may count differently."""

    def __init__(self, config: TrainingConfig, *, weighs: bool) -> None:
        self._weighs, self._ignored, self._smoothing = weighs, config.ignore_index, config.label_smoothing
        self._dim = class_dim(config)
        given = config.class_weights
        self._class_weights = None if given is None else torch.tensor(given, dtype=torch.float64)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor | tuple[Tensor, float]:
        flat, flat_targets = _classes_second(outputs, targets, self._dim)
        weights = None if self._class_weights is None else self._class_weights.to(outputs.dtype)
        try:
            mean = functional.cross_entropy(
                flat,
                flat_targets,
                weight=weights,
                ignore_index=self._ignored,
                label_smoothing=self._smoothing,
            )
        except (RuntimeError, ValueError, IndexError) as error:
            raise ConfigError(f"training.loss: 'cross_entropy': {_shapes(outputs, targets)}: {error}") from error
        if not self._weighs or not are_classes(targets):  # torch divides by the number of samples, as we do
            return mean
        counted = targets[targets != self._ignored]
        return mean, float(counted.numel()) if weights is None else weights.double()[counted].sum().item()


def class_dim(config: TrainingConfig) -> ClassDim:
    """Dimension of the classes in a model's outputs. In those of a built-in model they are last."""
    return config.class_dim if is_import_path(config.model) else -1


def fitting_dims(outputs: Tensor, targets: Tensor) -> tuple[int, ...]:
    """Dimensions of the outputs that can be the classes of these targets: 1, as in torch, or -1, the last."""
    shape, is_flat = outputs.shape, outputs.dim() == 2
    if outputs.dim() < 2:
        return ()
    if targets.is_floating_point():  # a probability for each class
        return () if targets.shape != shape else (-1,) if is_flat else (1, -1)
    first, last = shape[:1] + shape[2:] == targets.shape, shape[:-1] == targets.shape
    return (1,) * (first and not is_flat) + (-1,) * last


def _classes_second(outputs: Tensor, targets: Tensor, dim: ClassDim) -> tuple[Tensor, Tensor]:
    """Outputs and targets as torch takes them: with the classes in dimension 1."""
    fitting = fitting_dims(outputs, targets)
    chosen = fitting if dim == "auto" or outputs.dim() == 2 else tuple(fits for fits in fitting if fits == dim)
    if len(chosen) != 1:
        raise ConfigError(f"training.loss: 'cross_entropy': {_shapes(outputs, targets)}{_unclear(dim, fitting)}")
    if chosen[0] == 1 or outputs.dim() == 2:
        return outputs, targets
    return outputs.flatten(0, -2), targets.flatten(0, -2) if targets.is_floating_point() else targets.flatten()


def _unclear(dim: ClassDim, fitting: tuple[int, ...]) -> str:
    if len(fitting) == 2 and dim == "auto":
        return "; the classes may be dimension 1 or the last: set training.class_dim to 1 or -1"
    wanted = {1: "(n, classes, ...)", -1: "(n, ..., classes)"}
    should = " or ".join(wanted.values() if dim == "auto" else [wanted[dim]])
    hint = f", as training.class_dim is {dim}" if fitting else ""
    return f"; for targets of shape (n, ...) the outputs should be {should}{hint}"


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.shape != targets.shape:
        if _lengths(outputs) != _lengths(targets) or len(outputs) != len(targets):
            # Torch would only warn, broadcast one to the other and compute something else.
            raise ConfigError(f"training.loss: 'mse': {_shapes(outputs, targets)}; they should be the same")
        outputs = outputs.view_as(targets)
    try:
        return functional.mse_loss(outputs, targets)
    except RuntimeError as error:  # numbers that it cannot compute with, such as complex ones
        raise ConfigError(f"training.loss: 'mse': {error}; use a loss of your own") from error


def _lengths(tensor: Tensor) -> list[int]:
    """Shape without dimensions of length 1, which do not change the order of the numbers."""
    return [length for length in tensor.shape if length != 1]


def correct(outputs: Tensor, targets: Tensor, dim: ClassDim = "auto", ignored: int = IGNORED) -> tuple[int, int]:
    """Number of targets predicted right, and of those that could be judged: 0 without classes."""
    fitting = fitting_dims(outputs, targets) if are_classes(targets) else ()
    chosen = fitting[0] if len(fitting) == 1 else dim
    if chosen not in fitting or outputs.shape[chosen] < 2:  # one output is no choice between classes
        return 0, 0
    judged = targets != ignored
    right = (outputs.argmax(dim=chosen) == targets) & judged
    return int(right.sum()), int(judged.sum())


def _shapes(outputs: Tensor, targets: Tensor) -> str:
    return f"the model's outputs have shape {tuple(outputs.shape)}, the targets {tuple(targets.shape)}"


EVALUATED_TOGETHER = 256


@dataclass(frozen=True, slots=True)
class Settled:
    """Figures of a step that are equal on all ranks."""

    loss_scale: float = 1.0  # of the losses of all shares, so that their mean over samples is the loss of the step
    gradient_norm: float | None = None  # before clipping; None without clip_norm


class Learner:
    """Model of one rank, with buckets and optimizer. Of the other ranks it knows only how many there are."""

    def __init__(self, config: TrainingConfig, data: Data, model: nn.Module, *, size: int) -> None:
        self.data, self.model, self._size = data, model, size
        self.buckets = flatten(model, config.bucket_bytes)
        self.optimizer = make_optimizer(
            config, [bucket.parameters for bucket in self.buckets], [bucket.gradients for bucket in self.buckets]
        )
        self._forward, loss = forward_of(config, model), loss_function(config, data)
        self._backward = _backward_of(config)
        self._name = f"training.loss: {config.loss!r}"
        self._loss, self._weighs, self._clip_norm = loss.of, loss.weighs, config.clip_norm
        self._class_dim, self._ignored = class_dim(config), config.ignore_index
        self._unit = 1 if loss.weighs is False else _targets_in_a_sample(data)  # weight of a sample that counts fully
        self._weight, self._has_weighed = 0.0, False  # of this step; ever

    def backward(self, share: SampleShare, on_last_batch: Callable[[], None]) -> float:
        """Compute gradients whose mean over the ranks is that of the whole step, once they are settled.

        Returns the loss of the share, summed over samples. `on_last_batch` is called before the backward pass of the
        last batch, which completes the gradients, unless nothing counts in it.
        """
        for bucket in self.buckets:
            bucket.gradients.zero_()
        self._weight = summed = 0.0
        if not share.samples:
            return summed
        for index, batch in enumerate(share.batches, start=1):
            inputs, targets = self.data.train.batch(batch)
            mean, weight = self._weighed(self._loss(self._forward(inputs), targets), batch.numel())
            if not weight:  # nothing counts, and the mean of nothing is NaN
                continue
            if index == len(share.batches):
                on_last_batch()
            # Losses are means over batches, and the ring takes a plain mean over ranks, so a factor makes all samples
            # count the same. For most shares it is 1, and a product would cost as much as a small layer.
            factor = weight * self._size / (share.total * self._unit)
            # `mean.backward(factor)` would import sympy, half a second of every node's start.
            self._backward(mean if factor == 1 else mean * factor)
            summed += mean.item() * weight / self._unit
            self._weight += weight
        return summed

    def _weighed(self, given: Tensor | tuple[Tensor, float], samples: int) -> tuple[Tensor, float]:
        if isinstance(given, Tensor):
            return given, samples * self._unit
        if self._weighs is False:
            raise ConfigError(
                f"{self._name}: returned a weight, but none in the first step; return one always, or never"
            )
        self._has_weighed = True
        return given

    @property
    def needs_notes(self) -> bool:
        """Whether ranks must exchange notes before a step can be settled."""
        return self._weighs is not False or self._clip_norm is not None

    def note(self, rank: int) -> Tensor:
        """Note of this rank for all ranks, after the exchange: its weight, and its part of the gradients' norm.

        Each rank squares another part: what all compute of the same notes is the same to the bit on any processor.
        """
        squares = 0.0 if self._clip_norm is None else squares_of_part(self.buckets, rank, self._size)
        return torch.tensor([self._weight, float(self._has_weighed), squares], dtype=torch.float64)

    def settle(self, notes: Sequence[Tensor], share: SampleShare, *, step: int) -> Settled:
        """Scale the gradients by the weight of the whole step, and clip them. `notes` are those of all ranks."""
        weight, has_weighed, squares = (fsum(column) for column in zip(*(note.tolist() for note in notes), strict=True))
        if self._weighs is None:
            self._weighs = bool(has_weighed)
        # Without any weight the gradients are zero and the loss is NaN, as in torch.
        factor = share.total * self._unit / weight if weight else 1.0
        loss_scale, norm = factor if weight else nan, None
        if self._clip_norm is not None:
            norm = factor * sqrt(squares)
            factor *= clip_factor(norm, self._clip_norm, step=step)
        if factor != 1:
            for bucket in self.buckets:
                bucket.gradients.mul_(factor)
        return Settled(loss_scale, norm)

    @torch.no_grad()
    def evaluate(self, samples: range) -> tuple[float, float, int, int]:
        """Summed loss on these held-out samples and its weight; targets predicted right, and those judged."""
        losses, whole, right, judged = 0.0, 0.0, 0, 0
        with evaluating(self.model):
            for indexes in torch.tensor(samples, dtype=torch.long).split(EVALUATED_TOGETHER):  # type: ignore[no-untyped-call]
                if not len(indexes):
                    continue
                inputs, targets = self.data.test.batch(indexes)
                outputs = self._forward(inputs)
                mean, weight = self._weighed(self._loss(outputs, targets), len(indexes))
                losses, whole = losses + (mean.item() * weight if weight else 0.0), whole + weight
                hits, targets_judged = correct(outputs, targets, self._class_dim, self._ignored)
                right, judged = right + hits, judged + targets_judged
        return losses, whole, right, judged

    def fingerprint(self) -> str:
        return fingerprint(bucket.parameters for bucket in self.buckets)

    def tensors(self) -> list[Tensor]:
        """Tensors that must be the same on every rank: parameters and buffers."""
        frozen = [as_bits(parameter.data) for parameter in self.model.parameters() if not parameter.requires_grad]
        return [*(bucket.parameters for bucket in self.buckets), *frozen, *self.buffers()]

    def buffers(self) -> list[Tensor]:
        """Buffers such as running means. No gradient carries them, so each rank has its own."""
        return [as_bits(buffer) for buffer in self.model.buffers()]


def _backward_of(config: TrainingConfig) -> Callable[[Tensor], None]:
    """Backward pass. Only code of the user can fail in it: its own, or what it does to tensors that are needed."""
    if is_import_path(config.model):
        return guarded(_backward, f"training.model: {config.model!r}: in its backward pass")
    if is_import_path(config.loss):
        return guarded(_backward, f"training.loss: {config.loss!r}: in its backward pass")
    return _backward


def _backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def _targets_in_a_sample(data: Data) -> int:
    _, targets = data.train.batch(torch.zeros(1, dtype=torch.int64))
    return max(1, targets.numel())


def fingerprint(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(memory_of(tensor))
    return digest.hexdigest()[:16]


def memory_of(tensor: Tensor) -> memoryview:
    """Bytes of a tensor's numbers, without a copy if they are contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
