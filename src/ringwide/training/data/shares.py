"""Who computes on which samples.

Every epoch all ranks shuffle the same way and cut the order into steps of `size * batch_size * accumulate_batches`
samples; each rank takes its slice of every step. So no sample is seen twice in an epoch, and all ranks make the same
number of steps. The last step is smaller and its slices may differ by one, or be empty: a share therefore knows how
many samples the whole step has, so that each sample can be given the same weight. Or it is left out (`drop_last`), and
what it would have had comes elsewhere in the order of the next epoch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one step: the indexes of its samples, batch by batch."""

    batches: tuple[Tensor, ...]  # at least one, which is empty if this rank has no samples in this step
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
) -> Iterator[Share]:
    """What this rank computes in each step of the epoch, from step `first` on."""
    order = shuffled(samples, seed, epoch)
    per_step = batch_size * accumulate_batches * size
    taken = samples // per_step * per_step if drop_last else samples
    for start in range(first * per_step, taken, per_step):
        total = min(per_step, samples - start)
        begin, end = start + rank * total // size, start + (rank + 1) * total // size
        yield Share(_cut(order, begin, end, batch_size), total, end - begin)


def shuffled(count: int, *seed: int) -> Tensor:
    """The same order on every machine."""
    return torch.from_numpy(numpy.random.default_rng(seed).permutation(count))


def _cut(order: Tensor, begin: int, end: int, batch_size: int) -> tuple[Tensor, ...]:
    if end - begin <= batch_size:
        return (order[begin:end],)
    return tuple(order[start : min(start + batch_size, end)] for start in range(begin, end, batch_size))
