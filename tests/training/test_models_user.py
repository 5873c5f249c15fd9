import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from in_memory_ring import Meeting
from torch import nn

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.data_sources import load_data
from ringwide.training.learner import Learner
from ringwide.training.loop import train
from ringwide.training.models import build_model, forward_of
from ringwide.training.progress import Result
from ringwide.training.samples import SampleShare

MODELS = """
import sys
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.layer, self.then = nn.Linear(64, 10), then

    def forward(self, inputs):
        return self.then(self.layer(inputs))

def raises(outputs):
    raise KeyError("missing")

def leaves(outputs):
    sys.exit(3)

def double(): return nn.Linear(64, 10).double()
def failing(): return Own(raises)
def leaving(): return Own(leaves)
def pair(): return Own(lambda outputs: (outputs, None))
def nothing(): return Own(lambda outputs: None)
def detached(): return Own(torch.detach)
def best(): return Own(lambda outputs: outputs.argmax(dim=-1))
def normed(): return nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10))
def lazy(): return nn.Sequential(nn.LazyLinear(12), nn.LazyBatchNorm1d(), nn.LazyLinear(10))

class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.spare = nn.Linear(64, 10), nn.LazyLinear(3)

    def forward(self, inputs):
        return self.layer(inputs)

class Changes(torch.autograd.Function):
    @staticmethod
    def forward(context, outputs): return outputs * 2

    @staticmethod
    def backward(context, gradient): raise KeyError("lost")

def spoilt(outputs):
    squashed = outputs.sigmoid()
    squashed.mul_(2)
    return squashed

def lost(): return Own(Changes.apply)
def spoiling(): return Own(spoilt)

def with_buffer(buffer):
    model = nn.Linear(64, 10)
    model.register_buffer("kept", buffer)
    return model

def sparse(): return with_buffer(torch.eye(3).to_sparse())
def conjugated(): return with_buffer(torch.ones(2, dtype=torch.complex64).conj())
def meta(): return nn.Linear(64, 10, device="meta")

class Tied(nn.Module):
    def __init__(self, tie):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        tie(self)

    def forward(self, inputs):
        return self.last(self.second(self.first(inputs)))

def by_parameter(model): model.second.weight = model.first.weight
def by_data(model): model.second.weight.data = model.first.weight.data
def by_view(model): model.second.weight.data = model.first.weight.data.t()
def by_one_number(model): model.first.bias.data = model.last.weight.data.flatten()[576:]
def by_buffer(model): model.register_buffer("shadow", model.last.weight.detach())
def by_nothing(model):
    both = torch.randn(64, 128) / 64
    model.first.weight.data, model.second.weight.data = both[:, :64], both[:, 64:]
    model.second.requires_grad_(False)
    model.register_buffer("frozen_too", model.second.weight.detach())
    model.last = nn.utils.spectral_norm(model.last)
for tie in (by_parameter, by_data, by_view, by_one_number, by_buffer, by_nothing):
    globals()["tied_" + tie.__name__] = lambda tie=tie: Tied(tie)

class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.turned = nn.Parameter(torch.randn(64, 10, dtype=torch.complex64) / 8)
        self.shift = nn.Parameter(torch.zeros(10))

    def forward(self, inputs):
        return (inputs.to(torch.complex64) @ self.turned).abs() + self.shift
"""


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_models.py").write_text(MODELS)


@pytest.fixture(params=[False, True], ids=["plain", "overlapped"])
def trained(request: pytest.FixtureRequest) -> Callable[..., object]:
    async def act(name: str, **settings: object) -> Result:
        config = TrainingConfig(model=f"own_models:{name}", overlap=request.param, **settings)
        return await train(Meeting(1).ring(0), config, lambda _: None)

    return act


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("failing", "KeyError: 'missing' (own_models.py, line 15)"),
        ("leaving", "SystemExit: 3 (own_models.py, line 18)"),
        ("double", "RuntimeError: mat1 and mat2 must have the same dtype"),
        ("pair", "its forward returned a tuple; it should return a tensor"),
        ("nothing", "its forward returned a NoneType; it should return a tensor"),
        ("detached", "its forward returned a tensor without gradients"),
        ("best", "its forward returned a tensor without gradients"),
        ("lost", "in its backward pass: KeyError: 'lost' (own_models.py, line 43)"),
        ("spoiling", "in its backward pass: RuntimeError: one of the variables needed for gradient computation has"),
        ("sparse", "'kept' is sparse; keep its indices and values as buffers instead"),
        ("conjugated", "'kept' is a conjugated or negated view; keep its resolve_conj().resolve_neg() instead"),
        ("meta", "'weight' has no numbers, as its device is 'meta'; create it on the CPU"),
        ("tied_by_data", "'first.weight' and 'second.weight' share memory, but are not the same tensor: they would"),
        ("tied_by_view", "'first.weight' and 'second.weight' share memory"),
        ("tied_by_one_number", "'first.bias' and 'last.weight' share memory"),
        ("tied_by_buffer", "'last.weight' and 'shadow' share memory"),
    ],
)
async def test_a_mistake_in_a_model_is_told_in_one_sentence(
    name: str, told: str, trained: Callable[..., object]
) -> None:
    with pytest.raises(ConfigError) as raised:
        await trained(name, steps=1)
    assert str(raised.value).startswith(f"training.model: 'own_models:{name}': {told}")
    assert "\n" not in str(raised.value)
    assert "drop_last" not in str(raised.value)
    assert "learner.py" not in str(raised.value)


@pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")
@pytest.mark.parametrize("name", ["tied_by_parameter", "tied_by_nothing"])
async def test_who_has_one_parameter_twice_or_no_number_in_common_trains(
    name: str, trained: Callable[..., object]
) -> None:
    assert (await trained(name, steps=3, learning_rate=0.01)).steps == 3


async def test_a_tail_of_one_sample_is_told_with_its_cure(trained: Callable[..., object]) -> None:
    # 1,438 samples: after steps of 479 one is left.
    with pytest.raises(ConfigError, match=r"more than 1 value per channel .*; .* training\.drop_last: true leaves out"):
        await trained("normed", batch_size=479, epochs=1)
    assert (await trained("normed", batch_size=479, epochs=2, drop_last=True)).steps == 6


async def test_drop_last_does_not_help_if_every_batch_is_one_sample(trained: Callable[..., object]) -> None:
    with pytest.raises(ConfigError) as raised:
        await trained("normed", batch_size=1, epochs=1)
    assert "drop_last" not in str(raised.value)


def test_what_is_built_in_is_called_as_it_is() -> None:
    model = nn.Linear(2, 2)
    assert forward_of(TrainingConfig(), model) is model


def test_a_model_that_is_only_looked_at_needs_no_gradients() -> None:
    forward = forward_of(TrainingConfig(model="own_models:normed"), nn.Linear(2, 2))
    with torch.no_grad():
        assert forward(torch.ones(1, 2)).shape == (1, 2)


# -- parameters without a shape, and complex ones


async def test_lazy_layers_take_their_shapes_from_the_first_sample(trained: Callable[..., object]) -> None:
    result = await trained("lazy", epochs=4, batch_size=100, drop_last=True)
    assert result.test_accuracy > 0.8


def test_looking_for_shapes_changes_no_statistics() -> None:
    config = TrainingConfig(model="own_models:lazy")
    model = build_model(config, load_data(config))
    assert model.training
    assert model[1].training
    assert model[1].running_mean.tolist() == [0.0] * 12
    assert int(model[1].num_batches_tracked) == 0


async def test_a_lazy_layer_that_is_not_used_is_named(trained: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match=r"own_models:Unused': 'spare.weight' has no shape yet, because its forward"):
        await trained("Unused", steps=1)


@pytest.mark.parametrize(
    ("optimizer", "kind", "more"),
    [
        ("sgd", torch.optim.SGD, {"momentum": 0.9}),
        ("adam", torch.optim.Adam, {}),
        ("adamw", torch.optim.AdamW, {}),
    ],
    ids=["sgd", "adam", "adamw"],
)
async def test_complex_parameters_learn_as_in_plain_torch(
    optimizer: str, kind: type, more: dict[str, float], trained: Callable[..., object]
) -> None:
    config = TrainingConfig(model="own_models:Complex", optimizer=optimizer, learning_rate=0.01, weight_decay=0.01)
    data = load_data(config)
    model = build_model(config, data)
    one = Learner(config, data, copy.deepcopy(model), size=1)
    theirs = kind(model.parameters(), lr=0.01, weight_decay=0.01, **more)
    share = SampleShare((torch.arange(50),), total=50, samples=50)
    for _ in range(5):
        one.backward(share, lambda: None)
        one.optimizer.step(0.01)
        theirs.zero_grad()
        inputs, targets = data.train.batch(torch.arange(50))
        nn.functional.cross_entropy(model(inputs), targets).backward()
        theirs.step()
    for ours, other in zip(one.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, other)
    assert (await trained("Complex", optimizer=optimizer, steps=3, learning_rate=0.01)).steps == 3
