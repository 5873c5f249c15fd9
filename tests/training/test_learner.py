import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ringwide.training.config import TrainingConfig
from ringwide.training.learner import Learner
from ringwide.training.samples import Data, SampleShare, TensorSamples, shares

FEATURES, CLASSES, TRAIN, TEST = 5, 3, 23, 611


def samples(count: int, seed: int) -> TensorSamples:
    chance = torch.Generator().manual_seed(seed)
    return TensorSamples(
        torch.randn(count, FEATURES, generator=chance), torch.randint(CLASSES, (count,), generator=chance)
    )


DATA = Data(train=samples(TRAIN, 1), test=samples(TEST, 2), inputs=(FEATURES,), outputs=CLASSES)


def linear() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(FEATURES, CLASSES)


class Normed(nn.Module):
    """A layer with running means, one that is not trained, and things of every type that models keep."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.last = nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES)
        self.fixed = nn.BatchNorm1d(CLASSES).eval().requires_grad_(False)
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("turns", torch.ones(2, dtype=torch.complex64))
        self.register_buffer("places", torch.arange(4).expand(2, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fixed(self.last(self.norm(self.first(inputs)) * self.mask))


def learner(model: nn.Module, size: int = 1, data: Data = DATA, **settings: Any) -> Learner:
    return Learner(TrainingConfig(**{"momentum": 0.0, **settings}), data, model, size=size)


def share_of(rank: int, size: int, batch_size: int, accumulate: int) -> SampleShare:
    return next(
        shares(
            TRAIN,
            batch_size=batch_size,
            accumulate_batches=accumulate,
            rank=rank,
            size=size,
            seed=0,
            epoch=0,
        )
    )


def ignore() -> None:
    pass


# -- gradients


@settings(max_examples=25)
@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 3))
def test_the_mean_over_uneven_shares_is_the_gradient_of_the_whole_step(
    size: int, batch_size: int, accumulate: int
) -> None:
    every = [share_of(rank, size, batch_size, accumulate) for rank in range(size)]
    means, losses = torch.zeros(CLASSES * (FEATURES + 1)), 0.0
    for share in every:
        one = learner(linear(), size)
        losses += one.backward(share, ignore)
        means += one.buckets[0].gradients / size
    whole = linear()
    inputs, targets = DATA.train.batch(torch.cat([batch for share in every for batch in share.batches]))
    loss = nn.functional.cross_entropy(whole(inputs), targets)
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in reversed(list(whole.parameters()))])
    torch.testing.assert_close(means, expected)
    assert losses == pytest.approx(loss.item() * len(inputs), rel=1e-5)


def test_gradients_of_the_last_step_are_gone() -> None:
    one, share = learner(linear()), share_of(0, 1, 4, 2)
    one.backward(share, ignore)
    once = one.buckets[0].gradients.clone()
    one.backward(share, ignore)
    assert torch.equal(one.buckets[0].gradients, once)
    assert one.backward(SampleShare((torch.empty(0, dtype=torch.long),), total=5, samples=0), ignore) == 0
    assert not one.buckets[0].gradients.any()


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_batch_that_completes_the_gradients_is_announced_before_it(accumulate: int) -> None:
    announced: list[int] = []

    class Counting(nn.Linear):
        batches = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.batches += 1
            return super().forward(inputs)

    model = Counting(FEATURES, CLASSES)
    learner(model).backward(share_of(0, 1, 4, accumulate), lambda: announced.append(model.batches))
    assert (announced, model.batches) == ([accumulate], accumulate)


def test_a_last_batch_in_which_nothing_counts_is_not_announced() -> None:
    features, labels = DATA.train.batch(torch.arange(4))
    labels[2:] = -100
    data = Data(train=TensorSamples(features, labels), test=DATA.test, inputs=(FEATURES,), outputs=CLASSES)
    one, announced = learner(linear(), data=data), []
    first, last = torch.tensor([0, 1]), torch.tensor([2, 3])
    one.backward(SampleShare((first, last), total=4, samples=4), lambda: announced.append("early"))
    assert not announced
    assert one.buckets[0].gradients.any()
    one.backward(SampleShare((last, first), total=4, samples=4), lambda: announced.append("in time"))
    assert announced == ["in time"]


# -- evaluation


@pytest.mark.parametrize("size", [1, 2, 7, TEST + 1])
def test_parts_of_the_held_out_samples_add_up_to_the_whole(size: int) -> None:
    one = learner(linear())
    parts = [one.evaluate(range(rank * TEST // size, (rank + 1) * TEST // size)) for rank in range(size)]
    loss, weight, right, judged = (math.fsum(column) for column in zip(*parts, strict=True))
    with torch.no_grad():
        outputs = one.model(DATA.test.features)
    expected = nn.functional.cross_entropy(outputs, DATA.test.labels, reduction="sum").item()
    assert loss == pytest.approx(expected, rel=1e-5)
    assert weight == TEST
    assert (right, judged) == ((outputs.argmax(1) == DATA.test.labels).sum(), TEST)


def test_nothing_to_look_at_is_nothing_found() -> None:
    assert learner(linear()).evaluate(range(3, 3)) == (0.0, 0.0, 0, 0)


def test_what_has_no_classes_is_not_judged() -> None:
    numbers = TensorSamples(torch.ones(4, FEATURES), torch.ones(4, 1))
    data = Data(train=numbers, test=numbers, inputs=(FEATURES,), outputs=1)
    loss, weight, right, judged = learner(nn.Linear(FEATURES, 1), data=data, loss="mse").evaluate(range(4))
    assert loss > 0
    assert (weight, right, judged) == (4, 0, 0)


def test_looking_at_a_model_changes_nothing_of_it() -> None:
    one = learner(Normed())
    one.backward(share_of(0, 1, 8, 1), ignore)
    before = copy.deepcopy(one.model.state_dict())
    modes = [part.training for part in one.model.modules()]
    gradients = one.buckets[0].gradients.clone()
    first = one.evaluate(range(TEST))
    assert one.evaluate(range(TEST)) == first
    assert [part.training for part in one.model.modules()] == modes
    assert modes.count(False) == 1
    assert torch.equal(one.buckets[0].gradients, gradients)
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_model_that_fails_in_evaluation_goes_on_learning() -> None:
    class Fails(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            if not self.training:
                raise ZeroDivisionError
            return super().forward(inputs)

    one = learner(Fails(FEATURES, CLASSES))
    with pytest.raises(ZeroDivisionError):
        one.evaluate(range(3))
    assert one.model.training


# -- what all ranks must have alike


def test_everything_of_a_model_is_there_to_be_sent_and_can_be_overwritten() -> None:
    source, target = learner(Normed()), learner(Normed())
    for tensor in target.tensors():
        tensor.zero_()
    assert not any(value.any() for value in target.model.state_dict().values())
    for theirs, ours in zip(source.tensors(), target.tensors(), strict=True):
        ours.copy_(theirs)
    for name, tensor in target.model.state_dict().items():
        assert torch.equal(tensor, source.model.state_dict()[name]), name


def test_the_fingerprint_is_that_of_what_is_learnt() -> None:
    one, same = learner(Normed()), learner(Normed())
    assert one.fingerprint() == same.fingerprint()
    for buffer in same.buffers():
        buffer.zero_()
    assert one.fingerprint() == same.fingerprint()
    same.buckets[0].parameters[-1] *= -1
    assert one.fingerprint() != same.fingerprint()
