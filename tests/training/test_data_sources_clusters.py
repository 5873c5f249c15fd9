import torch

from ringwide.training.data_sources import clusters
from ringwide.training.samples import TensorSamples, steps_per_epoch


def test_they_are_the_same_each_time_and_have_the_size_of_the_forerunner() -> None:
    data = clusters()
    assert data.fingerprint() == clusters().fingerprint()
    assert (len(data.train), len(data.test), data.inputs, data.outputs) == (2560, 512, (128,), 10)
    assert steps_per_epoch(len(data.train), batch_size=8, accumulate_batches=1, size=10) == 32
    features, labels = data.train.batch(torch.arange(2560))
    assert (features.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert labels.bincount().tolist() == [256] * 10


def test_the_clouds_overlap_but_can_be_told_apart() -> None:
    data = clusters()
    assert isinstance(data.train, TensorSamples)
    assert isinstance(data.test, TensorSamples)
    features, labels = data.train.features, data.train.labels
    centres = torch.stack([features[labels == label].mean(dim=0) for label in range(10)])
    nearest = torch.cdist(data.test.features, centres).argmin(dim=1)
    assert 0.9 < (nearest == data.test.labels).float().mean() < 0.98
