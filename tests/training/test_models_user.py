from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from in_memory_ring import Meeting
from torch import nn

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.loop import train
from ringwide.training.models import forward_of
from ringwide.training.progress import Result

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
