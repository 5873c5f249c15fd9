import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.learner import Loss, correct, loss_function, mse
from ringwide.training.samples import Data, TensorSamples


def data_of(*labels: int) -> Data:
    samples = TensorSamples(torch.zeros(len(labels), 3), torch.tensor(labels))
    return Data(train=samples, test=samples, inputs=(3,), outputs=4)


ALL_COUNT, SOME_IGNORED = data_of(0, 1, 2, 3), data_of(0, -100)


def loss_of(data: Data = ALL_COUNT, **settings: Any) -> Loss:
    return loss_function(TrainingConfig(**settings), data)


def cross_entropy(outputs: Tensor, targets: Tensor, **settings: Any) -> Tensor:
    mean = loss_of(**settings).of(outputs, targets)
    assert isinstance(mean, Tensor)
    return mean


OWN = {"model": "own:model"}


def test_the_loss_is_the_mean_over_samples() -> None:
    outputs, targets = torch.randn(6, 4), torch.randint(0, 4, (6,))
    one_by_one = sum(cross_entropy(outputs[i : i + 1], targets[i : i + 1]) for i in range(6)) / 6
    torch.testing.assert_close(cross_entropy(outputs, targets), one_by_one)
    torch.testing.assert_close(cross_entropy(outputs, targets), -outputs.log_softmax(1)[range(6), targets].mean())


def test_a_text_counts_as_one_sample() -> None:
    outputs, targets = torch.randn(3, 5, 7), torch.randint(0, 7, (3, 5))
    of_samples = [functional.cross_entropy(outputs[i], targets[i]) for i in range(3)]
    torch.testing.assert_close(cross_entropy(outputs, targets), sum(of_samples) / 3)


# -- where the classes are


def test_classes_are_found_where_the_targets_leave_them() -> None:
    outputs, targets = torch.randn(3, 7, 5), torch.randint(0, 7, (3, 5))
    expected = functional.cross_entropy(outputs, targets)
    torch.testing.assert_close(cross_entropy(outputs, targets, **OWN), expected)
    torch.testing.assert_close(cross_entropy(outputs.transpose(1, 2), targets, **OWN), expected)
    pictures, pixels = torch.randn(2, 4, 3, 5), torch.randint(0, 4, (2, 3, 5))
    expected = functional.cross_entropy(pictures, pixels)
    torch.testing.assert_close(cross_entropy(pictures, pixels, **OWN), expected)
    torch.testing.assert_close(cross_entropy(pictures.movedim(1, -1), pixels, **OWN), expected)


def test_as_many_places_as_classes_must_be_told_apart() -> None:
    square, targets = torch.randn(2, 5, 5), torch.randint(0, 5, (2, 5))
    with pytest.raises(
        ConfigError, match=r"shape \(2, 5, 5\), the targets \(2, 5\); .* set training.class_dim to 1 or -1"
    ):
        cross_entropy(square, targets, **OWN)
    torch.testing.assert_close(
        cross_entropy(square, targets, **OWN, class_dim=1), functional.cross_entropy(square, targets)
    )
    last = -square.log_softmax(-1).gather(-1, targets[..., None]).mean()
    torch.testing.assert_close(cross_entropy(square, targets, **OWN, class_dim=-1), last)
    # The transformer's context may be as long as its vocabulary is large. It is known where it has its classes.
    torch.testing.assert_close(cross_entropy(square, targets), last)


def test_probabilities_of_several_places_do_not_say_where_the_classes_are() -> None:
    outputs, targets = torch.randn(2, 4, 3), torch.rand(2, 4, 3)
    with pytest.raises(ConfigError, match=r"set training.class_dim to 1 or -1"):
        cross_entropy(outputs, targets, **OWN)
    torch.testing.assert_close(
        cross_entropy(outputs, targets, **OWN, class_dim=1), functional.cross_entropy(outputs, targets)
    )
    turned = outputs.transpose(1, 2), targets.transpose(1, 2)
    torch.testing.assert_close(cross_entropy(*turned, **OWN, class_dim=-1), functional.cross_entropy(outputs, targets))


def test_targets_may_be_probabilities() -> None:
    outputs, classes = torch.randn(6, 4), torch.randint(0, 4, (6,))
    certain = functional.one_hot(classes, 4).float()
    torch.testing.assert_close(cross_entropy(outputs, certain), cross_entropy(outputs, classes))


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (torch.ones(3, 10), torch.arange(4)),
        (torch.ones(3, 2), torch.arange(3)),
        (torch.ones(3, 5, 2), torch.zeros(3, 4, dtype=torch.int64)),
        (torch.ones(3), torch.arange(3)),
        (torch.ones(3), torch.ones(3)),  # torch would take the samples for classes
    ],
    ids=["samples", "classes", "places", "no classes", "one number each"],
)
@pytest.mark.parametrize("settings", [{}, OWN, {**OWN, "class_dim": 1}], ids=["built-in", "own", "told"])
def test_outputs_that_do_not_fit_the_targets_are_told_with_both_shapes(
    outputs: Tensor, targets: Tensor, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"training.loss: 'cross_entropy': the model's outputs have shape"):
        cross_entropy(outputs, targets, **settings)


# -- what counts


def test_a_mean_over_some_targets_comes_with_their_weight() -> None:
    outputs, targets = torch.randn(4, 4), torch.tensor([0, 3, -100, 3])
    assert loss_of().weighs is False
    for settings, weight in ({}, 3.0), ({"class_weights": (1.0, 2.0, 4.0, 0.5)}, 2.0):
        loss = loss_of(SOME_IGNORED, **settings)
        assert loss.weighs is True
        mean, given = loss.of(outputs, targets)
        weights = torch.tensor(settings["class_weights"]) if settings else None
        torch.testing.assert_close(mean, functional.cross_entropy(outputs, targets, weight=weights))
        assert given == weight
    assert loss_of(ignore_index=3).of(outputs, targets.clamp(0))[1] == 2.0
    assert loss_of(SOME_IGNORED).of(outputs, torch.full((4,), -100))[1] == 0.0


def test_samples_that_do_not_say_what_they_have_may_have_ignored_targets() -> None:
    class Silent:
        pass

    silent = Data(train=Silent(), test=ALL_COUNT.test, inputs=(3,), outputs=4)
    assert loss_function(TrainingConfig(), silent).weighs is True


def test_as_many_class_weights_as_classes_are_needed() -> None:
    with pytest.raises(ConfigError, match=r"outputs have shape \(2, 4\).*weight tensor should be defined"):
        loss_of(class_weights=(1.0, 2.0)).of(torch.randn(2, 4), torch.tensor([0, 1]))


# -- mse


def test_mse_is_the_mean_over_samples() -> None:
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 4.0]])
    assert mse(outputs, targets).item() == (2.5 + 8.0) / 2


def test_mse_never_stretches_one_side_over_the_other() -> None:
    # (3, 1) against (3,) would become (3, 3).
    with warnings.catch_warnings(action="error"):
        assert mse(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 2.0, 5.0])).item() == pytest.approx(4 / 3)
    with pytest.raises(ConfigError, match=r"'mse': the model's outputs have shape \(3, 10\), the targets \(3,\)"):
        mse(torch.ones(3, 10), torch.arange(3))


def test_mse_takes_no_number_for_another() -> None:
    with pytest.raises(ConfigError, match=r"outputs have shape \(2, 5, 3\), the targets \(2, 3, 5\)"):
        mse(torch.ones(2, 5, 3), torch.ones(2, 3, 5))
    outputs, targets = torch.randn(2, 3, 5), torch.randn(2, 5, 1, 3)
    expected = functional.mse_loss(outputs.transpose(1, 2), targets[:, :, 0])
    torch.testing.assert_close(mse(outputs.transpose(1, 2), targets), expected)


def test_mse_of_what_torch_cannot_compare_is_told_in_a_sentence() -> None:
    numbers = torch.ones(2, 3, dtype=torch.complex64)
    with pytest.raises(ConfigError, match=r"^training\.loss: 'mse': .*'ComplexFloat'; use a loss of your own$"):
        mse(numbers, numbers)


# -- accuracy


def test_right_answers_are_counted_and_so_are_those_judged() -> None:
    assert correct(torch.eye(3), torch.tensor([0, 1, 0])) == (2, 3)
    assert correct(torch.eye(3), torch.tensor([0, 1, -100])) == (2, 2)
    assert correct(torch.eye(3), torch.tensor([0, 1, 0]), ignored=0) == (1, 1)
    guesses = functional.one_hot(torch.tensor([[0, 1, 2, 3, 0], [3, 3, 3, 3, 3]]), 4)
    assert correct(guesses, torch.tensor([[0, 1, 2, 0, -100], [3, 3, 3, 3, 3]])) == (8, 9)
    assert correct(guesses.transpose(1, 2), torch.tensor([[0, 1, 2, 0, -100], [3, 3, 3, 3, 3]])) == (8, 9)
    assert correct(torch.ones(0, 3), torch.ones(0, dtype=torch.int64)) == (0, 0)


def test_as_many_places_as_classes_are_judged_only_if_it_is_known_which_are_which() -> None:
    square, targets = torch.eye(3)[torch.tensor([[0, 1, 2], [2, 2, 2]])], torch.tensor([[0, 1, 2], [2, 2, 0]])
    assert correct(square, targets) == (0, 0)
    assert correct(square, targets, dim=-1) == (5, 6)
    assert correct(square.transpose(1, 2), targets, dim=1) == (5, 6)


def test_without_classes_nothing_is_judged() -> None:
    assert correct(torch.ones(3, 1), torch.ones(3)) == (0, 0)
    assert correct(torch.ones(3, 2), torch.ones(3, 2)) == (0, 0)
    assert correct(torch.ones(3, 2, 2), torch.ones(3, dtype=torch.int64)) == (0, 0)
    assert correct(torch.ones(3, 1), torch.zeros(3, dtype=torch.int64)) == (0, 0)  # yes or no, as one number


# -- a loss of the user's own

LOSSES = """
import torch
criterion = torch.nn.CrossEntropyLoss(weight=torch.ones(3))
def good(outputs, targets): return (outputs - targets).abs().sum()
def weighed(outputs, targets): return (outputs - targets).abs().sum(), torch.tensor(2.5)
def many(outputs, targets): return outputs - targets
def wrong(outputs, targets): return outputs @ targets
def cut(outputs, targets): return (outputs - targets).detach().sum()
def negative(outputs, targets): return outputs.sum(), -1
def words(outputs, targets): return outputs.sum(), "many"
def list_of_weights(outputs, targets): return outputs.sum(), targets
learnt, fixed = torch.nn.Bilinear(3, 3, 1), torch.nn.L1Loss()
"""


@pytest.fixture
def _losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    Path(tmp_path, "my_losses.py").write_text(LOSSES)


@pytest.mark.usefixtures("_losses")
def test_a_setting_chooses_the_loss() -> None:
    assert loss_of(loss="mse") == Loss(mse, weighs=False)
    assert loss_of(loss="my_losses:good").of(torch.ones(2, 3), torch.zeros(2, 3)).item() == 6.0
    mean, weight = loss_of(loss="my_losses:weighed").of(torch.ones(2, 3), torch.zeros(2, 3))
    assert (mean.item(), weight) == (6.0, 2.5)
    assert loss_of(loss="my_losses:good").weighs is None


@pytest.mark.usefixtures("_losses")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("many", r"returned a Tensor of shape \(2, 3\); it should return the mean"),
        ("wrong", r"RuntimeError: .* \(my_losses.py, line 7\)"),
        ("cut", "returned a tensor without gradients"),
        ("negative", "returned the weight -1.0; it should be 0 or more"),
        ("words", "returned a weight of type str; it should be one number"),
        ("list_of_weights", "returned a weight of type Tensor; it should be one number"),
    ],
)
def test_what_a_loss_returns_is_checked(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"'my_losses:{name}': {told}"):
        loss_of(loss=f"my_losses:{name}").of(torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3))


@pytest.mark.usefixtures("_losses")
def test_a_loss_with_something_to_learn_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'my_losses:learnt': has parameters of its own, which nobody would train"):
        loss_of(loss="my_losses:learnt")
    assert loss_of(loss="my_losses:fixed").of(torch.ones(2, 3), torch.zeros(2, 3)).item() == 1.0


@pytest.mark.usefixtures("_losses")
def test_a_mean_alone_of_targets_that_torch_ignores_is_refused() -> None:
    loss = loss_of(SOME_IGNORED, loss="my_losses:good").of
    loss(torch.ones(3), torch.tensor([0, 1, 2]))
    with pytest.raises(ConfigError, match=r"'my_losses:good': returned a mean alone, but some targets are -100"):
        loss(torch.ones(3), torch.tensor([0, -100, 2]))


@pytest.mark.usefixtures("_losses")
@pytest.mark.parametrize(
    "path", ["torch.nn.functional:cross_entropy", "torch.nn.functional:nll_loss", "my_losses:criterion"]
)
def test_means_of_torch_over_what_counts_are_refused_by_name(path: str) -> None:
    with pytest.raises(ConfigError, match=r"its mean is over the targets that count.*write cross_entropy, or"):
        loss_of(loss=path)
    assert isinstance(loss_of(loss="torch.nn.functional:l1_loss").of(torch.ones(2), torch.zeros(2)), Tensor)
