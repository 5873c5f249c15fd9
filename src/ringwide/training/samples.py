"""Samples of a training run: how data looks to the loop, and which rank computes on which samples in which step.

In every epoch all ranks shuffle the same way and cut the order into steps of `size * batch_size * accumulate_batches`
samples; each rank takes its slice of every step. So no sample is used twice in an epoch, and all ranks make the same
number of steps. The last step is smaller, and its slices may differ by one or be empty. A share therefore knows how
many samples the whole step has, so that every sample gets the same weight. With `drop_last` that step is left out.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Protocol

import numpy
import torch
from torch import Tensor

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig


class Samples(Protocol):
    """Indexed samples, fetched in batches."""

    def __len__(self) -> int: ...

    def batch(self, indexes: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples."""

    def digest(self) -> bytes:
        """SHA-256 of all samples."""


def are_classes(targets: Tensor) -> bool:
    """Whether targets are numbers of classes: integers, and nothing to compute with."""
    return not targets.is_floating_point() and not targets.is_complex()


def may_have_target(samples: Samples, value: int) -> bool:
    """Whether a target may have this value. Samples that have no `has_target` to ask may have any."""
    known = getattr(samples, "has_target", None)
    return True if known is None else bool(known(value))


@dataclass(frozen=True, slots=True)
class Data:
    """Samples to train on and samples to test on."""

    train: Samples
    test: Samples  # held out from training
    inputs: tuple[int, ...]  # shape of one sample
    outputs: int  # classes, characters of the vocabulary or numbers to predict; 0: unknown

    def fingerprint(self) -> bytes:
        """Digest of 32 bytes, equal on two machines exactly if they have the same data."""
        whole = hashlib.sha256(repr((self.inputs, self.outputs)).encode())
        whole.update(self.train.digest())
        whole.update(self.test.digest())
        return whole.digest()


class TensorSamples:
    """Samples in memory: two tensors with a row for each sample."""

    __slots__ = ("features", "labels")

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indexes: Tensor) -> tuple[Tensor, Tensor]:
        # `features[indexes]` would take half as long again for a small batch.
        return self.features.index_select(0, indexes), self.labels.index_select(0, indexes)

    def has_target(self, value: int) -> bool:
        return are_classes(self.labels) and bool((self.labels == value).any())

    def digest(self) -> bytes:
        whole = hashlib.sha256()
        for tensor in (self.features, self.labels):
            whole.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            # As bytes, because numpy, whose buffers hashlib reads, has no bfloat16.
            whole.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        return whole.digest()


# -- shares: samples of one rank in one step


@dataclass(frozen=True, slots=True)
class SampleShare:
    """Share of one rank in one step: the indexes of its samples, batch by batch."""

    batches: tuple[Tensor, ...]  # at least one; it is empty if the rank has no samples in this step
    total: int  # samples of all ranks
    samples: int  # of this rank


def steps_per_epoch(
    samples: int, *, batch_size: int, accumulate_batches: int, size: int, drop_last: bool = False
) -> int:
    per_step = batch_size * accumulate_batches * size
    return samples // per_step if drop_last else ceil(samples / per_step)


def shares(
    samples: int,
    *,
    batch_size: int,
    accumulate_batches: int,
    rank: int,
    size: int,
    seed: int,
    epoch: int,
    first: int = 0,
    drop_last: bool = False,
) -> Iterator[SampleShare]:
    """Shares of this rank in each step of the epoch, from step `first` on."""
    order = shuffled(samples, seed, epoch)
    per_step = batch_size * accumulate_batches * size
    taken = samples // per_step * per_step if drop_last else samples
    for start in range(first * per_step, taken, per_step):
        total = min(per_step, samples - start)
        begin, end = start + rank * total // size, start + (rank + 1) * total // size
        yield SampleShare(_cut(order, begin, end, batch_size), total, end - begin)


def shuffled(count: int, *seed: int) -> Tensor:
    """Permutation that is the same on every machine."""
    return torch.from_numpy(numpy.random.default_rng(seed).permutation(count))


def _cut(order: Tensor, begin: int, end: int, batch_size: int) -> tuple[Tensor, ...]:
    if end - begin <= batch_size:
        return (order[begin:end],)
    return tuple(order[start : min(start + batch_size, end)] for start in range(begin, end, batch_size))


# -- course: steps from the start of training to its end


@dataclass(frozen=True, slots=True)
class Position:
    """Position in the training: steps made in all, the epoch, and the step in it."""

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0


class Course:
    """Steps of a training run, with the share of one rank in each."""

    def __init__(self, config: TrainingConfig, *, samples: int, rank: int, size: int) -> None:
        self._config, self._samples, self._rank, self._size = config, samples, rank, size
        self.steps_per_epoch = steps_per_epoch(
            samples,
            batch_size=config.batch_size,
            accumulate_batches=config.accumulate_batches,
            size=size,
            drop_last=config.drop_last,
        )
        if not self.steps_per_epoch:
            needed = config.batch_size * config.accumulate_batches * size
            raise ConfigError(
                f"training.drop_last: true: a whole step needs {needed} samples (batch_size x accumulate_batches x"
                f" nodes), but there are {samples}; make the batches smaller"
            )
        self.last_step = _last_step(config, self.steps_per_epoch)

    def after(self, start: Position) -> Iterator[tuple[Position, SampleShare]]:
        """Shares of this rank after `start`, each with the position reached by it."""
        step, epoch, first = start.step, start.epoch, start.step_in_epoch
        while True:
            for in_epoch, share in enumerate(self._shares(epoch, first), start=first + 1):
                if self.last_step is not None and step >= self.last_step:
                    return
                step += 1
                yield Position(step, epoch, in_epoch), share
            epoch, first = epoch + 1, 0

    def _shares(self, epoch: int, first: int) -> Iterator[SampleShare]:
        return shares(
            self._samples,
            batch_size=self._config.batch_size,
            accumulate_batches=self._config.accumulate_batches,
            rank=self._rank,
            size=self._size,
            seed=self._config.seed,
            epoch=epoch,
            first=first,
            drop_last=self._config.drop_last,
        )


def _last_step(config: TrainingConfig, steps_per_epoch: int) -> int | None:
    """Number of the last step; None if only time ends the training."""
    by_epochs = None if config.epoch_limit is None else config.epoch_limit * steps_per_epoch
    return min((limit for limit in (config.steps, by_epochs) if limit is not None), default=None)
