"""What every kind of data looks like to the loop."""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Samples(Protocol):
    def __len__(self) -> int: ...

    def batch(self, indexes: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs and the targets of these samples."""

    def digest(self) -> bytes:
        """The SHA-256 of everything in them."""


@dataclass(frozen=True, slots=True)
class Data:
    train: Samples
    test: Samples  # held out: never trained on
    inputs: tuple[int, ...]  # the shape of one sample
    outputs: int  # classes, characters of the vocabulary or numbers to predict; 0: unknown

    def fingerprint(self) -> bytes:
        """Two machines have the same 32 bytes if, and only if, they have the same data."""
        whole = hashlib.sha256(repr((self.inputs, self.outputs)).encode())
        whole.update(self.train.digest())
        whole.update(self.test.digest())
        return whole.digest()


class TensorSamples:
    """Samples that are in memory, as two tensors with one row each for every sample."""

    __slots__ = ("features", "labels")

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indexes: Tensor) -> tuple[Tensor, Tensor]:
        # Not `features[indexes]`: that takes half as long again for a small batch.
        return self.features.index_select(0, indexes), self.labels.index_select(0, indexes)

    def digest(self) -> bytes:
        whole = hashlib.sha256()
        for tensor in (self.features, self.labels):
            whole.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            # As bytes, because numpy, whose buffers hashlib reads, has no bfloat16.
            whole.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        return whole.digest()
