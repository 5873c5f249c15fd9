"""Ten clouds of points that overlap: the least one can learn from, made anew on every machine.

The size of the forerunner's workload: ten nodes with batches of 8 make 32 steps an epoch, and a linear model has 5 KB
of gradients. Unlike there, something can be learnt: a loss near 2.303 is guessing.
"""

import numpy
import torch

from ringwide.training.data.samples import Data, TensorSamples

CLASSES = 10
FEATURES = 128
TRAIN, TEST = 2560, 512
SEED = 0  # fixed: runs with different seeds learn from the same samples
DISTANCE = 0.33  # how far the centres spread; each cloud spreads 1. A linear model mistakes about one point in twenty


def clusters() -> Data:
    chance = numpy.random.default_rng(SEED)
    centres = DISTANCE * chance.standard_normal((CLASSES, FEATURES))
    return Data(
        train=_around(centres, TRAIN, chance), test=_around(centres, TEST, chance), inputs=(FEATURES,), outputs=CLASSES
    )


def _around(centres: numpy.ndarray, count: int, chance: numpy.random.Generator) -> TensorSamples:
    labels = numpy.arange(count) % CLASSES
    # Rounded to float32 at the very end, which also hides what mathematical libraries compute differently.
    points = centres[labels] + chance.standard_normal((count, FEATURES))
    return TensorSamples(torch.from_numpy(points.astype(numpy.float32)), torch.from_numpy(labels))
