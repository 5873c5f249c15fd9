"""The random numbers of this process: seeded once, kept in checkpoints."""

import random
from typing import Any

import numpy
import torch


def seed(*numbers: int) -> None:
    """Dropout and the like are to differ between ranks, and to be the same when a run is repeated."""
    one = int(numpy.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(one)
    numpy.random.seed(one)
    torch.manual_seed(one)


def state() -> dict[str, Any]:
    """As plain values and tensors, which can be loaded without trusting the file."""
    kind, keys, *rest = numpy.random.get_state()
    return {
        "random": random.getstate(),
        "numpy": (kind, torch.from_numpy(numpy.asarray(keys, dtype="int64")), *rest),
        "torch": torch.get_rng_state(),
    }


def restore(state: dict[str, Any]) -> None:
    random.setstate(state["random"])
    kind, keys, *rest = state["numpy"]
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))
    torch.set_rng_state(state["torch"])
