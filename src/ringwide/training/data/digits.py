"""Scikit-learn's 1,797 handwritten digits of 8x8 pixels."""

from importlib.util import find_spec
from pathlib import Path

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
    """From the file that scikit-learn brings, because importing it takes 1.4 s of every node's start."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "training.data: 'digits' needs scikit-learn, which is not installed: pip install 'ringwide[experiments]'"
        )
    file = Path(found.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    if not file.exists():  # it is nowhere promised where scikit-learn keeps it
        return _load_digits_slowly()
    table = numpy.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1]


def _load_digits_slowly() -> tuple[numpy.ndarray, numpy.ndarray]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels
