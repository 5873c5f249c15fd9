"""Gradients travel when they are final, whatever autograd does: reported once, several times, never, or by nobody."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from in_memory_ring import Meeting
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ringwide
from local_ring import on_every_rank
from ringwide.errors import CollectiveAborted, ConfigError, PeerLeft
from ringwide.training.checkpoint import Checkpoints
from ringwide.training.config import TrainingConfig
from ringwide.training.loop import train
from ringwide.training.progress import Result

SEVERAL_BUCKETS = {"batch_size": 40, "steps": 8, "bucket_bytes": 1024}


class Model(nn.Module):
    """Three layers, each a bucket of its own or more; the one in the middle is used as a test likes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, 24), nn.Linear(24, 24), nn.Linear(24, 10)

    def again(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.middle(hidden))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.between(self.first(inputs)))

    def between(self, hidden: Tensor) -> Tensor:
        return self.again(hidden)


class ReentrantTwice(Model):
    """Autograd runs one backward pass inside the other for each use, and reports the layer each time."""

    def between(self, hidden: Tensor) -> Tensor:
        for _ in range(3):
            hidden = checkpoint(self.again, hidden, use_reentrant=True)
        return hidden


class ReentrantOnceAndPlain(Model):
    def between(self, hidden: Tensor) -> Tensor:
        return self.again(checkpoint(self.again, hidden, use_reentrant=True))


class PlainAndReentrant(Model):
    def between(self, hidden: Tensor) -> Tensor:
        return checkpoint(self.again, self.again(hidden), use_reentrant=True)


class ReentrantInReentrant(Model):
    def between(self, hidden: Tensor) -> Tensor:
        def inner(hidden: Tensor) -> Tensor:
            return checkpoint(self.again, self.again(hidden), use_reentrant=True)

        return checkpoint(inner, inner(hidden), use_reentrant=True)


class NotReentrant(Model):
    def between(self, hidden: Tensor) -> Tensor:
        for _ in range(3):
            hidden = checkpoint(self.again, hidden, use_reentrant=False)
        return hidden


class Tied(Model):
    def __init__(self) -> None:
        super().__init__()
        self.twin = nn.Linear(24, 24)
        self.twin.weight = self.middle.weight

    def between(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.twin(self.again(hidden)))


class Unused(Model):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden


class NowAndThen(Model):
    """Only used in some steps."""

    calls = 0

    def between(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return self.again(hidden) if self.calls % 3 == 0 else hidden


class BackwardOfItsOwn(Model):
    """A second loss, whose backward pass the model runs itself."""

    def between(self, hidden: Tensor) -> Tensor:
        if self.training:
            self.middle(hidden.detach()).square().mean().backward()
        return self.again(hidden)


EVERY_WAY = [
    Model,
    ReentrantTwice,
    ReentrantOnceAndPlain,
    PlainAndReentrant,
    ReentrantInReentrant,
    NotReentrant,
    Tied,
    Unused,
    NowAndThen,
    BackwardOfItsOwn,
]


async def trained(monkeypatch: pytest.MonkeyPatch, model: type[nn.Module], *, overlap: bool) -> list[Result]:
    monkeypatch.setattr("ringwide.training.loop.build_model", lambda config, data: model())
    meeting, config = Meeting(2), TrainingConfig(**SEVERAL_BUCKETS, overlap=overlap)
    return await asyncio.gather(*(train(meeting.ring(rank), config, ignore) for rank in range(2)))


def ignore(_: object) -> None:
    pass


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch, in the evaluation
@pytest.mark.parametrize("model", EVERY_WAY)
async def test_what_travels_early_is_what_travels_late(monkeypatch: pytest.MonkeyPatch, model: type[nn.Module]) -> None:
    after = await trained(monkeypatch, model, overlap=False)
    during = await trained(monkeypatch, model, overlap=True)
    assert {result.fingerprint for result in after + during} == {after[0].fingerprint}
    assert during[0].hidden_seconds > 0


class OnceMore(Model):
    """From its third step on a layer is reported once more than ever before."""

    calls = 0

    def between(self, hidden: Tensor) -> Tensor:
        self.calls += self.training
        uses = 1 if self.calls < 3 else 2
        for _ in range(uses):
            hidden = checkpoint(self.again, hidden, use_reentrant=True)
        return hidden


class ByHand(torch.autograd.Function):
    """Adds to the gradient of a layer's weight past autograd, as fused kernels do."""

    @staticmethod
    def forward(context: object, hidden: Tensor, layer: nn.Linear) -> Tensor:
        context.layer = layer  # type: ignore[attr-defined]
        return hidden.clone()

    @staticmethod
    def backward(context: object, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        context.layer.weight.grad.add_(1.0)  # type: ignore[attr-defined]
        return gradient, None


class PastAutograd(Model):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = ByHand.apply(self.first(inputs), self.last)
        return self.last(self.between(hidden))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (OnceMore, r"gradient of middle\.(weight|bias)(, middle\.(weight|bias))? changed after its bucket \('gradient"),
        (PastAutograd, r"gradient of .*last\.weight changed after its bucket \('gradients 0'\) had left"),
    ],
)
async def test_a_gradient_that_grows_after_its_bucket_has_left_is_refused(
    monkeypatch: pytest.MonkeyPatch, model: type[nn.Module], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        await trained(monkeypatch, model, overlap=True)
    assert str(raised.value).endswith("set training.overlap: false")
    await trained(monkeypatch, model, overlap=False)  # and that is all it needs


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
async def test_where_one_rank_refuses_all_end_and_no_checkpoint_has_that_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    models: list[Callable[[], nn.Module]] = [Model, OnceMore, Model]
    monkeypatch.setattr("ringwide.training.loop.build_model", lambda config, data: models.pop()())
    config = TrainingConfig(**SEVERAL_BUCKETS, overlap=True)
    errors: dict[int, Exception] = {}

    async def act(ring: ringwide.Ring) -> None:
        try:
            await train(ring, config, ignore, checkpoints=Checkpoints(tmp_path, every_steps=1, keep=9))
        except Exception as error:
            errors[ring.rank] = error
            if isinstance(error, ConfigError):
                raise

    with pytest.raises(ConfigError):
        await on_every_rank(3, act, stay=False)
    refused, *ended = sorted(errors.values(), key=lambda error: not isinstance(error, ConfigError))
    assert isinstance(refused, ConfigError)
    assert len(ended) == 2
    assert all(isinstance(error, PeerLeft | CollectiveAborted) for error in ended), "whichever of the two comes first"
    complete = sorted(name for name in os.listdir(tmp_path) if "rank" not in name and name.endswith(".pt"))
    assert complete == ["step-000000001.pt", "step-000000002.pt"]
