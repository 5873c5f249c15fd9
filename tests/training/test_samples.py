import pytest
import torch
from torch import Tensor

from ringwide.training.samples import Data, TensorSamples

FEATURES, LABELS = torch.arange(12.0).view(4, 3), torch.arange(4)


def test_a_batch_is_the_rows_asked_for_in_that_order() -> None:
    samples = TensorSamples(FEATURES, LABELS)
    inputs, targets = samples.batch(torch.tensor([2, 0]))
    assert (len(samples), inputs.tolist(), targets.tolist()) == (4, [[6, 7, 8], [0, 1, 2]], [2, 0])
    assert [part.tolist() for part in samples.batch(torch.tensor([], dtype=torch.int64))] == [[], []]


def data(features: Tensor = FEATURES, labels: Tensor = LABELS, test: Tensor = FEATURES, outputs: int = 4) -> Data:
    return Data(TensorSamples(features, labels), TensorSamples(test, LABELS), tuple(features.shape[1:]), outputs)


def test_equal_data_have_equal_fingerprints() -> None:
    assert len(data().fingerprint()) == 32
    assert data().fingerprint() == data(FEATURES.clone(), LABELS.clone()).fingerprint()
    # A view that strides over other memory holds the same numbers.
    assert data().fingerprint() == data(FEATURES.t().contiguous().t()).fingerprint()


@pytest.mark.parametrize(
    "other",
    [
        data(FEATURES + 1),
        data(labels=LABELS.flip(0)),
        data(test=FEATURES + 1),
        data(labels=LABELS.to(torch.int32)),
        data(FEATURES.view(4, 1, 3)),
        data(outputs=5),
        data(FEATURES.bfloat16()),
        data(FEATURES.view(torch.int32)),
    ],
    ids=["features", "labels", "test", "dtype", "shape", "outputs", "bfloat16", "same bytes"],
)
def test_any_difference_shows_in_the_fingerprint(other: Data) -> None:
    assert other.fingerprint() != data().fingerprint()


def test_samples_know_their_targets() -> None:
    samples = TensorSamples(FEATURES, torch.tensor([0, -100, 2, 3]))
    assert samples.has_target(-100)
    assert not samples.has_target(1)
    assert not TensorSamples(FEATURES, torch.full((4,), -100.0)).has_target(-100)
