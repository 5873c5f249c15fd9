"""A model, its data and what one step does to it. Knows nothing of other ranks, but how many there are."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ringwide.training.bits import as_bits
from ringwide.training.config import TrainingConfig
from ringwide.training.data.samples import Data
from ringwide.training.data.shares import Share
from ringwide.training.flat import flatten
from ringwide.training.losses import correct, loss_function
from ringwide.training.models.own import forward_of
from ringwide.training.optimizer import make_optimizer

EVALUATED_TOGETHER = 256


class Learner:
    def __init__(self, config: TrainingConfig, data: Data, model: nn.Module, *, size: int) -> None:
        self.data, self.model, self._size = data, model, size
        self.buckets = flatten(model, config.bucket_bytes)
        self.optimizer = make_optimizer(
            config, [bucket.parameters for bucket in self.buckets], [bucket.gradients for bucket in self.buckets]
        )
        self._forward, self._loss = forward_of(config, model), loss_function(config)

    def backward(self, share: Share, on_last_batch: Callable[[], None]) -> float:
        """Leave gradients whose mean over the ranks is that of the whole step. Returns the summed loss of the share.

        `on_last_batch` hears that the batch comes which completes the gradients.
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
            # Losses are means, shares may differ in length, and the ring takes a plain mean: so that every sample
            # weighs the same. Most shares are equal, and a product takes as long as a small layer.
            count = batch.numel()
            weight = count * self._size / share.total
            # Not `loss.backward(weight)`: with an argument it imports sympy, half a second of every node's start.
            (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
            summed += loss.item() * count
        return summed

    @torch.no_grad()
    def evaluate(self, samples: range) -> tuple[float, float, int]:
        """Summed loss and right answers of these held-out samples, and how many had a right answer to give."""
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
        """All that must be the same on every rank: what is learnt, and what the model keeps beside it."""
        frozen = [as_bits(parameter.data) for parameter in self.model.parameters() if not parameter.requires_grad]
        return [*(bucket.parameters for bucket in self.buckets), *frozen, *self.buffers()]

    def buffers(self) -> list[Tensor]:
        """Running means and the like, which no gradient carries: each rank has its own."""
        return [as_bits(buffer) for buffer in self.model.buffers()]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Afterwards each part of the model is as it was: some may have been made not to learn."""
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
