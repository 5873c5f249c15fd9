import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.optimizers import Optimizer, clip_factor, flatten, make_optimizer, squares_of_part

SHAPES = [(50,), (7, 3), (1000,)]
SETTINGS: list[dict[str, Any]] = [
    {"optimizer": "sgd", "momentum": 0.0},
    {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.1},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    {"optimizer": "adam"},
    {"optimizer": "adam", "weight_decay": 0.1, "betas": (0.8, 0.95)},
    {"optimizer": "adamw"},
    {"optimizer": "adamw", "weight_decay": 0.1, "betas": (0.8, 0.95)},
]


def made(settings: dict[str, Any], seed: int = 0) -> tuple[Optimizer, list[Tensor], list[Tensor]]:
    chance = torch.Generator().manual_seed(seed)
    parameters = [torch.randn(shape, generator=chance) for shape in SHAPES]
    gradients = [torch.zeros(shape) for shape in SHAPES]
    return make_optimizer(TrainingConfig.model_validate(settings), parameters, gradients), parameters, gradients


def torchs(settings: dict[str, Any], parameters: list[Tensor]) -> torch.optim.Optimizer:
    more = dict(settings)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[more.pop("optimizer")]
    return kind(parameters, lr=0.1, foreach=False, **{"weight_decay": 0.0, **more})


def move(optimizer: Optimizer, gradients: list[Tensor], steps: range) -> None:
    for step in steps:
        for number, gradient in enumerate(gradients):
            gradient.copy_(torch.randn(gradient.shape, generator=torch.Generator().manual_seed(100 * step + number)))
        optimizer.step(0.1 / (1 + step))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_steps_as_torch_does_to_the_bit(settings: dict[str, Any]) -> None:
    ours, parameters, gradients = made(settings)
    copies = [parameter.clone().requires_grad_() for parameter in parameters]
    theirs = torchs(settings, copies)
    for step in range(8):
        move(ours, gradients, range(step, step + 1))
        for copy, gradient in zip(copies, gradients, strict=True):
            copy.grad = gradient.clone()
        theirs.param_groups[0]["lr"] = 0.1 / (1 + step)
        theirs.step()
        assert all(torch.equal(*pair) for pair in zip(parameters, copies, strict=True))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_gradients_stay_as_they_are(settings: dict[str, Any]) -> None:
    ours, _, gradients = made(settings)
    move(ours, gradients, range(1))
    before = [gradient.clone() for gradient in gradients]
    ours.step(0.1)
    assert all(torch.equal(*pair) for pair in zip(before, gradients, strict=True))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_its_state_copied_into_another_makes_that_go_on_to_the_same_bits(settings: dict[str, Any]) -> None:
    never_stopped, expected, gradients = made(settings)
    move(never_stopped, gradients, range(8))

    stopped, halfway, gradients = made(settings)
    move(stopped, gradients, range(4))
    resumed, parameters, gradients = made(settings, seed=1)
    for parameter, kept in zip(parameters, halfway, strict=True):
        parameter.copy_(kept)
    assert resumed.state().keys() == stopped.state().keys()
    for name, tensor in resumed.state().items():
        tensor.copy_(stopped.state()[name])
    move(resumed, gradients, range(4, 8))
    assert all(torch.equal(*pair) for pair in zip(parameters, expected, strict=True))


def test_parameters_that_want_gradients_can_be_moved() -> None:
    parameter, gradient = torch.ones(3, requires_grad=True), torch.ones(3)
    make_optimizer(TrainingConfig(momentum=0.0), [parameter], [gradient]).step(0.5)
    assert parameter.tolist() == [0.5] * 3
    assert parameter.requires_grad


# -- clipping


@pytest.mark.parametrize("limit", [0.1, 3.0, 1e6])
def test_gradients_are_clipped_as_torch_clips_them(limit: float) -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3)).double()
    buckets = flatten(model, 200)
    assert len(buckets) > 1
    for bucket in buckets:
        bucket.gradients.copy_(torch.randn_like(bucket.gradients))
    norm = math.sqrt(math.fsum(squares_of_part(buckets, rank, 4) for rank in range(4)))
    ours = [bucket.gradients * clip_factor(norm, limit, step=1) for bucket in buckets]
    assert nn.utils.clip_grad_norm_(model.parameters(), limit).item() == pytest.approx(norm, rel=1e-12)
    torch.testing.assert_close([bucket.gradients for bucket in buckets], ours)


def test_squares_of_float32_do_not_overflow() -> None:
    model = nn.Linear(4, 1, bias=False)
    buckets = flatten(model, 1024)
    buckets[0].gradients.fill_(1e30)
    assert squares_of_part(buckets, 0, 1) == pytest.approx(4e60)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_is_one_sentence(norm: float) -> None:
    with pytest.raises(
        ConfigError, match=rf"training.clip_norm: 0.5: in step 7 the norm of the gradients is {norm}, which"
    ):
        clip_factor(norm, 0.5, step=7)
