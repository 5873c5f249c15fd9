import warnings
from pathlib import Path

import pytest
import torch

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.learner import correct, cross_entropy, loss_function, mse


def test_the_loss_is_the_mean_over_samples() -> None:
    outputs, targets = torch.randn(6, 4), torch.randint(0, 4, (6,))
    one_by_one = sum(cross_entropy(outputs[i : i + 1], targets[i : i + 1]) for i in range(6)) / 6
    torch.testing.assert_close(cross_entropy(outputs, targets), one_by_one)
    torch.testing.assert_close(cross_entropy(outputs, targets), -outputs.log_softmax(1)[range(6), targets].mean())


def test_a_text_counts_as_one_sample() -> None:
    outputs, targets = torch.randn(3, 5, 7), torch.randint(0, 7, (3, 5))
    of_samples = [torch.nn.functional.cross_entropy(outputs[i], targets[i]) for i in range(3)]
    torch.testing.assert_close(cross_entropy(outputs, targets), sum(of_samples) / 3)
    # As many characters as there are in the vocabulary: classes must not be looked for where characters are.
    square, answers = torch.randn(2, 5, 5), torch.randint(0, 5, (2, 5))
    expected = -square.log_softmax(-1).gather(-1, answers[..., None]).mean()
    torch.testing.assert_close(cross_entropy(square, answers), expected)


def test_targets_may_be_probabilities() -> None:
    outputs, classes = torch.randn(6, 4), torch.randint(0, 4, (6,))
    certain = torch.nn.functional.one_hot(classes, 4).float()
    torch.testing.assert_close(cross_entropy(outputs, certain), cross_entropy(outputs, classes))


def test_mse_is_the_mean_over_samples() -> None:
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 4.0]])
    assert mse(outputs, targets).item() == (2.5 + 8.0) / 2


def test_mse_never_stretches_one_side_over_the_other() -> None:
    # (3, 1) against (3,) would become (3, 3).
    with warnings.catch_warnings(action="error"):
        assert mse(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 2.0, 5.0])).item() == pytest.approx(4 / 3)
    with pytest.raises(ConfigError, match=r"'mse': the model's outputs have shape \(3, 10\), the targets \(3,\)"):
        mse(torch.ones(3, 10), torch.arange(3))


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (torch.ones(3, 10), torch.arange(4)),
        (torch.ones(3, 2), torch.arange(3)),
        (torch.ones(3, 5, 2), torch.zeros(3, 4, dtype=torch.int64)),
        (torch.ones(3), torch.arange(3)),
    ],
    ids=["samples", "classes", "places", "no classes"],
)
def test_outputs_that_do_not_fit_the_targets_are_told_with_both_shapes(
    outputs: torch.Tensor, targets: torch.Tensor
) -> None:
    with pytest.raises(ConfigError, match=r"training.loss: 'cross_entropy': the model's outputs have shape"):
        cross_entropy(outputs, targets)


def test_right_answers_are_counted_and_a_text_by_the_part_that_is_right() -> None:
    assert correct(torch.eye(3), torch.tensor([0, 1, 0])) == 2
    guesses = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2, 3], [3, 3, 3, 3]]), 4)
    assert correct(guesses, torch.tensor([[0, 1, 2, 0], [3, 3, 3, 3]])) == 1.75
    assert correct(torch.ones(0, 3), torch.ones(0, dtype=torch.int64)) == 0


def test_without_classes_nothing_is_right() -> None:
    assert correct(torch.ones(3, 1), torch.ones(3)) is None
    assert correct(torch.ones(3, 2), torch.ones(3, 2)) is None
    assert correct(torch.ones(3, 2, 2), torch.ones(3, dtype=torch.int64)) is None


def test_a_setting_chooses_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    Path(tmp_path, "my_losses.py").write_text(
        "def good(outputs, targets): return (outputs - targets).abs().sum()\n"
        "def many(outputs, targets): return outputs - targets\n"
        "def wrong(outputs, targets): return outputs @ targets\n"
        "def cut(outputs, targets): return (outputs - targets).detach().sum()\n"
    )
    assert loss_function(TrainingConfig()) is cross_entropy
    assert loss_function(TrainingConfig(loss="mse")) is mse
    assert loss_function(TrainingConfig(loss="my_losses:good"))(torch.ones(2, 3), torch.zeros(2, 3)).item() == 6.0
    with pytest.raises(ConfigError, match=r"'my_losses:many': returned a Tensor of shape \(2, 3\); it should return"):
        loss_function(TrainingConfig(loss="my_losses:many"))(torch.ones(2, 3), torch.zeros(2, 3))
    with pytest.raises(ConfigError, match=r"'my_losses:wrong': RuntimeError: .* \(my_losses.py, line 3\)"):
        loss_function(TrainingConfig(loss="my_losses:wrong"))(torch.ones(2, 3), torch.zeros(2, 3))
    with pytest.raises(ConfigError, match=r"'my_losses:cut': returned a tensor without gradients"):
        loss_function(TrainingConfig(loss="my_losses:cut"))(torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3))
