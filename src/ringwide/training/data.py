"""The samples, and who gets which.

Every epoch all ranks shuffle the same way and cut the order into batches of `size * batch_size`; each rank takes its
slice of every batch. So no sample is seen twice in an epoch, and all ranks make the same number of steps. The last
batch is smaller and its slices may differ by one, or be empty: a share therefore knows how large the whole batch is,
so that each sample can be given the same weight.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy
import torch
from torch import Tensor

from ringwide.errors import ConfigError

TEST_PART = 5  # one sample in five is held out
SPLIT_SEED = 0  # fixed: runs with different seeds are tested on the same samples


@dataclass(frozen=True, slots=True)
class Samples:
    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Data:
    train: Samples
    test: Samples
    inputs: int
    classes: int


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one batch."""

    indexes: Tensor
    batch_total: int


def digits() -> Data:
    pixels, labels = _load_digits()
    features = torch.from_numpy(pixels).float().div_(16)
    targets = torch.from_numpy(labels).long()
    order = _shuffled(len(targets), SPLIT_SEED)
    held_out, kept = order[: len(order) // TEST_PART], order[len(order) // TEST_PART :]
    return Data(
        train=Samples(features[kept], targets[kept]),
        test=Samples(features[held_out], targets[held_out]),
        inputs=features.shape[1],
        classes=int(targets.max()) + 1,
    )


def steps_per_epoch(samples: int, batch_size: int, size: int) -> int:
    return ceil(samples / (batch_size * size))


def shares(samples: int, *, batch_size: int, rank: int, size: int, seed: int, epoch: int) -> Iterator[Share]:
    """What this rank computes in each step of the epoch."""
    order = _shuffled(samples, seed, epoch)
    for start in range(0, samples, batch_size * size):
        batch = order[start : start + batch_size * size]
        total = len(batch)
        yield Share(batch[rank * total // size : (rank + 1) * total // size], total)


def _shuffled(count: int, *seed: int) -> Tensor:
    return torch.from_numpy(numpy.random.default_rng(seed).permutation(count))


def _load_digits() -> tuple[numpy.ndarray, numpy.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "training.data: 'digits' needs scikit-learn, which is not installed: pip install 'ringwide[experiments]'"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels
