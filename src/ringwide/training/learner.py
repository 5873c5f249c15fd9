"""Learner of one rank: a model, its data, its loss, and the forward and backward pass of one step."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.models import forward_of
from ringwide.training.optimizers import make_optimizer
from ringwide.training.samples import Data, SampleShare
from ringwide.training.user_code import guarded, resolve


@dataclass(frozen=True, slots=True)
class FlatBucket:
    """Parameters of one dtype that are exchanged together. The model's tensors are views of these two flat ones."""

    name: str
    parameters: Tensor
    gradients: Tensor
    members: tuple[nn.Parameter, ...]

    @property
    def nbytes(self) -> int:
        return self.gradients.nbytes


def flatten(model: nn.Module, bucket_bytes: int) -> list[FlatBucket]:
    """Move the trainable parameters into buckets of about `bucket_bytes`. Frozen ones stay where they are."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [_bucket(index, members) for index, members in enumerate(_grouped(trainable[::-1], bucket_bytes))]


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


def _bucket(index: int, members: Sequence[nn.Parameter]) -> FlatBucket:
    count = sum(member.numel() for member in members)
    parameters = torch.empty(count, dtype=members[0].dtype)
    gradients = torch.zeros_like(parameters)
    start = 0
    for member in members:
        part = slice(start, start + member.numel())
        parameters[part].copy_(member.data.flatten())
        member.data = parameters[part].view(member.shape)
        member.grad = gradients[part].view(member.shape)
        start = part.stop
    return FlatBucket(f"gradients {index}", parameters, gradients, tuple(members))


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

Loss = Callable[[Tensor, Tensor], Tensor]


def loss_function(config: TrainingConfig) -> Loss:
    """Loss that an experiment names: the mean over samples, as in torch.

    A sample with many targets, such as a text, counts once, with their mean. Classes are the last dimension of the
    outputs.
    """
    match config.loss:
        case "cross_entropy":
            return cross_entropy
        case "mse":
            return mse
        case path:
            return _user_loss(path)


def _user_loss(path: str) -> Loss:
    where = f"training.loss: {path!r}"
    function = guarded(resolve(path, "training.loss"), where)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        given = function(outputs, targets)
        if not isinstance(given, Tensor) or given.dim():
            shape = f" of shape {tuple(given.shape)}" if isinstance(given, Tensor) else ""
            given_instead = f"returned a {type(given).__name__}{shape}"
            raise ConfigError(
                f"{where}: {given_instead}; it should return the mean over samples, a tensor of one number"
            )
        if outputs.requires_grad and not given.requires_grad:
            raise ConfigError(f"{where}: returned a tensor without gradients; look for detach, no_grad or numpy in it")
        return given

    return loss


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    try:
        if targets.dim() == 1 or targets.is_floating_point():
            return functional.cross_entropy(outputs, targets)
        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
    except (RuntimeError, ValueError, IndexError) as error:
        raise ConfigError(f"training.loss: 'cross_entropy': {_shapes(outputs, targets)}: {error}") from error


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.shape != targets.shape:
        if outputs.numel() != targets.numel() or len(outputs) != len(targets):
            # Torch would only warn, broadcast one to the other and compute something else.
            raise ConfigError(f"training.loss: 'mse': {_shapes(outputs, targets)}; they should be the same")
        outputs = outputs.view_as(targets)
    return functional.mse_loss(outputs, targets)


def correct(outputs: Tensor, targets: Tensor) -> float | None:
    """Number of samples predicted right, a sample with many targets counting in part; None without classes."""
    if targets.is_floating_point() or outputs.shape[:-1] != targets.shape:
        return None
    right = (outputs.argmax(dim=-1) == targets).sum().item()
    return right * len(targets) / max(1, targets.numel())


def _shapes(outputs: Tensor, targets: Tensor) -> str:
    return f"the model's outputs have shape {tuple(outputs.shape)}, the targets {tuple(targets.shape)}"


EVALUATED_TOGETHER = 256


class Learner:
    """Model of one rank, with buckets and optimizer. Of the other ranks it knows only how many there are."""

    def __init__(self, config: TrainingConfig, data: Data, model: nn.Module, *, size: int) -> None:
        self.data, self.model, self._size = data, model, size
        self.buckets = flatten(model, config.bucket_bytes)
        self.optimizer = make_optimizer(
            config, [bucket.parameters for bucket in self.buckets], [bucket.gradients for bucket in self.buckets]
        )
        self._forward, self._loss = forward_of(config, model), loss_function(config)

    def backward(self, share: SampleShare, on_last_batch: Callable[[], None]) -> float:
        """Compute gradients whose mean over the ranks is that of the whole step. Returns the summed loss of the share.

        `on_last_batch` is called before the batch that completes the gradients.
        """
        for bucket in self.buckets:
            bucket.gradients.zero_()
        if not share.samples:
            return 0.0
        summed = 0.0
        for index, batch in enumerate(share.batches, start=1):
            if index == len(share.batches):
                on_last_batch()
            inputs, targets = self.data.train.batch(batch)
            loss = self._loss(self._forward(inputs), targets)
            # Losses are means over batches, and the ring takes a plain mean over ranks, so a weight makes all samples
            # count the same. For most shares it is 1, and a product would cost as much as a small layer.
            count = batch.numel()
            weight = count * self._size / share.total
            # `loss.backward(weight)` would import sympy, half a second of every node's start.
            (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
            summed += loss.item() * count
        return summed

    @torch.no_grad()
    def evaluate(self, samples: range) -> tuple[float, float, int]:
        """Summed loss and right predictions on these held-out samples, and how many could be judged."""
        losses, right, judged = 0.0, 0.0, 0
        with _evaluating(self.model):
            for indexes in torch.tensor(samples, dtype=torch.long).split(EVALUATED_TOGETHER):  # type: ignore[no-untyped-call]
                if not len(indexes):
                    continue
                inputs, targets = self.data.test.batch(indexes)
                outputs = self._forward(inputs)
                losses += self._loss(outputs, targets).item() * len(indexes)
                hits = correct(outputs, targets)
                right, judged = right + (hits or 0.0), judged + (len(indexes) if hits is not None else 0)
        return losses, right, judged

    def fingerprint(self) -> str:
        return fingerprint(bucket.parameters for bucket in self.buckets)

    def tensors(self) -> list[Tensor]:
        """Tensors that must be the same on every rank: parameters and buffers."""
        frozen = [as_bits(parameter.data) for parameter in self.model.parameters() if not parameter.requires_grad]
        return [*(bucket.parameters for bucket in self.buckets), *frozen, *self.buffers()]

    def buffers(self) -> list[Tensor]:
        """Buffers such as running means. No gradient carries them, so each rank has its own."""
        return [as_bits(buffer) for buffer in self.model.buffers()]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the length of the block. Afterwards each module is as before: some may be frozen."""
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def fingerprint(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
