"""Data-parallel training: every rank computes gradients on its share, the ring averages them, all make the same step.

python -m ringwide run configs/quickstart.yaml
"""

import hashlib
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ringwide.training.config import TrainingConfig
from ringwide.training.data import Data, Samples, Share, digits, shares, steps_per_epoch
from ringwide.training.models import mlp
from ringwide.training.optimizer import Sgd
from ringwide.training.progress import Result, Step


class Statistics(Protocol):
    @property
    def network_seconds(self) -> float: ...
    @property
    def compression_ratio(self) -> float: ...
    @property
    def codec_seconds(self) -> float: ...


class Ring(Protocol):
    """What the loop needs of a ring."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    async def broadcast(self, tensors: Any, root: int = 0) -> Any: ...
    async def allreduce(self, tensors: Any) -> Any: ...
    def statistics(self) -> Statistics: ...


async def train(
    ring: Ring,
    config: TrainingConfig,
    on_step: Callable[[Step], None],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    torch.set_num_threads(1)  # the ranks are the threads: more would only fight for the cores
    data = digits()
    model = await _same_model_everywhere(ring, config, data)
    parameters = list(model.parameters())
    optimizer = Sgd(parameters, learning_rate=config.learning_rate, momentum=config.momentum)

    steps_in_epoch = steps_per_epoch(len(data.train), config.batch_size, ring.size)
    steps = 0
    before, started = ring.statistics(), clock()
    for epoch in range(config.epochs):
        loss_sum, samples = 0.0, 0
        for share in _shares_of(ring, config, data, epoch):
            loss_sum += backward(model, data.train, share, ring.size)
            samples += len(share.indexes)
            await ring.allreduce([parameter.grad for parameter in parameters])
            optimizer.step()
            steps += 1
            on_step(Step(steps, steps_in_epoch * config.epochs, epoch, loss_sum / max(samples, 1)))
    after, seconds = ring.statistics(), clock() - started

    return Result(
        steps=steps,
        loss=loss_sum / max(samples, 1),
        test_accuracy=accuracy(model, data.test),
        seconds=seconds,
        network_seconds=after.network_seconds - before.network_seconds,
        fingerprint=fingerprint(parameters),
        compression_ratio=after.compression_ratio,
        codec_seconds=after.codec_seconds - before.codec_seconds,
    )


def backward(model: nn.Module, samples: Samples, share: Share, size: int) -> float:
    """Leave gradients whose mean over the ranks is that of the whole batch. Returns the summed loss of the share."""
    model.zero_grad()
    loss = cross_entropy(model(samples.features[share.indexes]), samples.labels[share.indexes], reduction="sum")
    (loss * (size / share.batch_total)).backward()  # type: ignore[no-untyped-call]
    return loss.item()


@torch.no_grad()
def accuracy(model: nn.Module, samples: Samples) -> float:
    guesses: Tensor = model(samples.features).argmax(dim=1)
    return float((guesses == samples.labels).float().mean())


def fingerprint(parameters: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


async def _same_model_everywhere(ring: Ring, config: TrainingConfig, data: Data) -> nn.Module:
    # Each rank starts elsewhere on purpose: were the broadcast to fail silently, the fingerprints would show it.
    torch.manual_seed(config.seed + ring.rank)
    model = mlp(data.inputs, config.hidden_sizes, data.classes)
    await ring.broadcast([parameter.data for parameter in model.parameters()], root=0)
    return model


def _shares_of(ring: Ring, config: TrainingConfig, data: Data, epoch: int) -> Iterable[Share]:
    return shares(
        len(data.train),
        batch_size=config.batch_size,
        rank=ring.rank,
        size=ring.size,
        seed=config.seed,
        epoch=epoch,
    )
