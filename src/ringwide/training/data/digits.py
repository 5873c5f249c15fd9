"""Scikit-learn's 1,797 handwritten digits of 8x8 pixels."""

import numpy
import torch

from ringwide.errors import ConfigError
from ringwide.training.data.samples import Data, TensorSamples
from ringwide.training.data.shares import shuffled

TEST_PART = 5  # one sample in five is held out
SPLIT_SEED = 0  # fixed: runs with different seeds are tested on the same samples
BRIGHTEST = 16


def digits() -> Data:
    pixels, labels = _load_digits()
    features = torch.from_numpy(pixels).float().div_(BRIGHTEST)
    targets = torch.from_numpy(labels).long()
    order = shuffled(len(targets), SPLIT_SEED)
    held_out, kept = order[: len(order) // TEST_PART], order[len(order) // TEST_PART :]
    return Data(
        train=TensorSamples(features[kept], targets[kept]),
        test=TensorSamples(features[held_out], targets[held_out]),
        inputs=(features.shape[1],),
        outputs=int(targets.max()) + 1,
    )


def _load_digits() -> tuple[numpy.ndarray, numpy.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "training.data: 'digits' needs scikit-learn, which is not installed: pip install 'ringwide[experiments]'"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels
