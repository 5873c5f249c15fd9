import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.learner import loss_function
from ringwide.training.models import build_model
from ringwide.training.samples import Data, TensorSamples


def data_of(inputs: torch.Tensor, outputs: int = 10) -> Data:
    samples = TensorSamples(inputs, torch.zeros(len(inputs), dtype=torch.int64))
    return Data(samples, samples, tuple(inputs.shape[1:]), outputs)


CLUSTERS, DIGITS = data_of(torch.randn(6, 128)), data_of(torch.rand(6, 64))
TEXT = data_of(torch.randint(0, 128, (6, 16)), outputs=128)
SMALL = {"model": "transformer", "data": "stdlib", "layers": 2, "heads": 2, "width": 16}
BUILT_IN: list[tuple[dict[str, Any], Data]] = [
    ({"model": "linear", "data": "clusters"}, CLUSTERS),
    ({"model": "mlp", "hidden_sizes": (32, 16)}, DIGITS),
    ({"model": "mlp", "hidden_sizes": ()}, DIGITS),
    ({"model": "cnn"}, DIGITS),
    ({"model": "cnn", "channels": (4, 5, 6)}, DIGITS),
    (SMALL, TEXT),
]

NAMES = [settings["model"] for settings, _ in BUILT_IN]


def built(settings: dict[str, Any], data: Data) -> nn.Module:
    torch.manual_seed(0)
    return build_model(TrainingConfig.model_validate(settings), data)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("settings", "data"), BUILT_IN, ids=NAMES)
def test_every_model_gives_one_output_for_each_class_and_a_gradient_to_each_parameter(
    settings: dict[str, Any], data: Data
) -> None:
    model = built(settings, data)
    inputs, _ = data.train.batch(torch.arange(3))
    outputs = model(inputs)
    assert outputs.shape == (*(inputs.shape if data is TEXT else (3,)), data.outputs)
    outputs.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize(("settings", "data"), BUILT_IN, ids=NAMES)
def test_no_samples_give_gradients_of_zero(settings: dict[str, Any], data: Data) -> None:
    model = built(settings, data)
    inputs, targets = data.train.batch(torch.arange(0))
    targets = targets if data is not TEXT else torch.zeros(0, 16, dtype=torch.int64)
    loss_function(TrainingConfig.model_validate(settings), data).of(model(inputs), targets).backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


def test_the_linear_model_has_the_forerunners_5_kb_of_gradients() -> None:
    assert 4 * count(built({"model": "linear", "data": "clusters"}, CLUSTERS)) == 5160


def test_samples_of_any_shape_are_flattened() -> None:
    pictures = data_of(torch.randn(6, 3, 4, 5))
    for model in ("linear", "mlp"):
        assert built({"model": model, "data": "mine:data"}, pictures)(torch.randn(2, 3, 4, 5)).shape == (2, 10)


@pytest.mark.parametrize("shape", [(3, 9, 7), (9, 7), (49,), (1, 1, 1), (2, 1, 8)])
def test_the_cnn_takes_pictures_of_any_size(shape: tuple[int, ...]) -> None:
    model = built({"model": "cnn", "channels": (4, 4, 4), "data": "mine:data"}, data_of(torch.randn(6, *shape)))
    assert model(torch.randn(2, *shape)).shape == (2, 10)


def test_the_cnn_refuses_what_is_no_picture() -> None:
    with pytest.raises(ConfigError, match=r"'cnn': samples of shape \(50,\) are not pictures"):
        built({"model": "cnn", "data": "mine:data"}, data_of(torch.randn(6, 50)))


def test_the_transformer_cannot_see_what_comes() -> None:
    model = built(SMALL, TEXT).eval()
    text = torch.randint(0, 128, (1, 16))
    changed = text.clone()
    changed[0, 8] += 1
    with torch.no_grad():
        before, after = model(text), model(changed % 128)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.isclose(before[:, 8:], after[:, 8:]).all(dim=-1).any()


def test_the_transformer_starts_by_guessing_and_ties_its_head() -> None:
    model = built(SMALL, TEXT)
    inputs = torch.randint(0, 128, (4, 16))
    loss = loss_function(TrainingConfig(), TEXT).of(model(inputs), torch.randint(0, 128, (4, 16)))
    assert loss.item() == pytest.approx(math.log(128), rel=0.05)
    assert model.head.weight is model.characters.weight
    names = [name for name, _ in model.named_parameters()]
    assert "characters.weight" in names
    assert "head.weight" not in names


def test_dropout_is_for_training_alone() -> None:
    model, inputs = built({**SMALL, "dropout": 0.5}, TEXT), torch.randint(0, 128, (2, 16))
    assert not torch.equal(model(inputs), model(inputs))
    model.eval()
    assert torch.equal(model(inputs), model(inputs))


def test_the_seed_decides_the_first_parameters() -> None:
    one, other = (nn.utils.parameters_to_vector(built(SMALL, TEXT).parameters()) for _ in range(2))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("settings", "data", "complaint"),
    [
        ({"model": "mlp"}, data_of(torch.ones(3, 4, dtype=torch.int64)), r"inputs are int64 of shape \(n, 4\); model"),
        ({"model": "linear"}, data_of(torch.ones(3)), r"inputs are float32 of shape \(n\); model 'linear' needs"),
        ({"model": "mlp"}, data_of(torch.ones(3, 4), outputs=0), "how many outputs model 'mlp' needs"),
        ({"model": "transformer"}, data_of(torch.ones(3, 4)), "inputs are float32 .* a transformer needs int64"),
        (
            {"model": "transformer"},
            data_of(torch.ones(3, 4, 4, dtype=torch.int64)),
            "inputs are int64 .* needs int64 of shape",
        ),
        (
            {"model": "transformer"},
            data_of(torch.full((3, 4), 10), outputs=10),
            "inputs go from 10 to 10, but a transformer with 10 outputs takes 0 to 9",
        ),
    ],
)
def test_data_that_a_built_in_model_cannot_take_is_refused(
    settings: dict[str, Any], data: Data, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=f"training.data: 'mine:data': {complaint}"):
        built({**settings, "data": "mine:data"}, data)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    Path(tmp_path, "my_models.py").write_text(
        "from math import prod\n"
        "from torch import nn\n"
        "def fixed(width=3): return nn.Linear(64, width)\n"
        "def fitted(inputs, outputs, bias=True): return nn.Linear(prod(inputs), outputs, bias=bias)\n"
        "def nothing(): return None\n"
        "def empty(): return nn.ReLU()\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self, outputs): super().__init__(64, outputs)\n"
    )


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [("fixed", {}, 195), ("fixed", {"width": 1}, 65), ("fitted", {"bias": False}, 640), ("Net", {}, 650)],
)
def test_a_model_of_ones_own_is_called_with_its_options(name: str, options: dict[str, Any], parameters: int) -> None:
    assert count(built({"model": f"my_models:{name}", "model_options": options}, DIGITS)) == parameters


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nothing", "returned a NoneType; it should return a torch.nn.Module"),
        ("empty", "has no parameters that can be trained"),
    ],
)
def test_what_is_no_model_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"training.model: 'my_models:{name}': {complaint}"):
        built({"model": f"my_models:{name}"}, DIGITS)


def test_a_node_with_little_to_learn_loads_little() -> None:
    """Ten nodes start at once on few cores: each of these would take each of them a second or more."""
    script = """
import sys, torch
from ringwide.training.config import TrainingConfig
from ringwide.training.data_sources import load_data
from ringwide.training.learner import loss_function
from ringwide.training.models import build_model
from ringwide.training.optimizers import make_optimizer
config = TrainingConfig(model="linear", data="clusters")
load_data(TrainingConfig(data="digits"))
data = load_data(config)
model = build_model(config, data)
inputs, targets = data.train.batch(torch.arange(8))
loss_function(config, data).of(model(inputs), targets).backward()
parameters = list(model.parameters())
make_optimizer(config, parameters, [parameter.grad for parameter in parameters]).step(0.1)
print(*sorted({"sklearn", "scipy", "torch._dynamo", "sympy"} & set(sys.modules)))
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, check=True)
    assert answer.stdout.split() == []
