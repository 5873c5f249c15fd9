"""Ranks that do not hold the same parameters find out soon, and before they write a checkpoint."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from in_memory_ring import InMemoryRing, Meeting
from torch import Tensor, nn

from ringwide.errors import ConfigError, RingwideError
from ringwide.training.agreement import ReplicaCheck, gather_texts
from ringwide.training.checkpoint import Checkpoints
from ringwide.training.config import TrainingConfig
from ringwide.training.loop import train
from ringwide.training.progress import Result

CONFIG = TrainingConfig(batch_size=30, steps=20, bucket_bytes=2048)


class Tokens(nn.Module):
    """The brightest pixel of a digit as a word: in a step, ranks see different ones."""

    def __init__(self, *, freeze: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 8, max_norm=0.5)
        self.words.weight.requires_grad_(not freeze)
        self.last = nn.Linear(8, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.words(inputs.argmax(dim=1)))


class Layers(nn.Module):
    """Two layers. `act` is called in every forward pass of the training, with the model and the pass's number."""

    def __init__(self, act: Callable[["Layers", int], object] = lambda model, count: None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)
        self._act, self._count = act, 0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self._count += 1
            self._act(self, self._count)
        return self.last(torch.tanh(self.first(inputs)))


async def errors(
    monkeypatch: pytest.MonkeyPatch, *models: nn.Module, config: TrainingConfig = CONFIG, keep_in: Path | None = None
) -> list[str]:
    """What ends each rank, each of which has a model of its own; "": nothing."""
    meeting, ranks = Meeting(len(models)), list[int]()  # the last is that of the rank that builds its model now
    monkeypatch.setattr("ringwide.training.loop.seed_rng", lambda seed, rank: ranks.append(rank))
    monkeypatch.setattr("ringwide.training.loop.build_model", lambda config, data: models[ranks[-1]])

    async def one_rank(rank: int) -> Result:
        checkpoints = None if keep_in is None else Checkpoints(keep_in, every_steps=1, keep=9)
        return await train(meeting.ring(rank), config, lambda _: None, checkpoints=checkpoints)

    ended = await asyncio.gather(*map(one_rank, range(len(models))), return_exceptions=True)
    for each in ended:
        if isinstance(each, BaseException) and not isinstance(each, RingwideError):
            raise each
    return [str(each) if isinstance(each, RingwideError) else "" for each in ended]


@pytest.mark.parametrize(("freeze", "where"), [(False, "bucket 'gradients 1'"), (True, "frozen")])
async def test_an_embedding_that_renormalises_what_it_sees_ends_the_run_at_once(
    monkeypatch: pytest.MonkeyPatch, freeze: bool, where: str
) -> None:
    told = await errors(monkeypatch, Tokens(freeze=freeze), Tokens(freeze=freeze))
    assert told[0] == told[1]
    assert told[0].startswith(f"after step 1 parameter 'words.weight' ({where}) of rank 1 differs from that of the")
    assert "nn.Embedding(max_norm=...)" in told[0]


async def test_the_rank_with_which_the_others_disagree_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def stray(model: Layers, count: int) -> None:
        if count == 3:
            model.last.bias.data[7] += 1e-7

    (told, *others) = await errors(monkeypatch, Layers(stray), Layers(), Layers())
    assert told.startswith("after step 4 parameter 'last.bias' (bucket 'gradients 0') of rank 0 differs")
    assert others == [told, told]


async def test_no_checkpoint_holds_what_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stray(model: Layers, count: int) -> None:
        if count == 3:
            model.first.weight.data[0, 0] += 1

    (told, _) = await errors(monkeypatch, Layers(), Layers(stray), keep_in=tmp_path)
    assert told.startswith("after step 3 parameter 'first.weight'")
    assert max(name for name in os.listdir(tmp_path) if name.endswith(".pt")) == "step-000000002.rank-1.pt"


async def test_what_differs_in_the_last_step_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def stray(model: Layers, count: int) -> None:
        if count == 7:
            model.first.weight.data[0, 0] += 1

    config = CONFIG.model_copy(update={"steps": 7})
    (told, _) = await errors(monkeypatch, Layers(), Layers(stray), config=config)
    assert told.startswith("after step 7 parameter 'first.weight'")


async def test_who_is_the_same_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await errors(monkeypatch, Layers(), Layers()) == ["", ""]


def replaced_gradient(model: Layers, count: int) -> None:
    model.zero_grad()  # sets them to None: what comes then is in no bucket


def replaced_data(model: Layers, count: int) -> None:
    model.first.weight.data = model.first.weight.data.clone()


@pytest.mark.parametrize(
    ("act", "name"), [(replaced_gradient, "last.bias"), (replaced_data, "first.weight")], ids=["gradient", "data"]
)
async def test_a_parameter_that_is_not_in_its_bucket_any_more_is_named(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[Layers, int], object], name: str
) -> None:
    """It would never be trained, on any rank: they would agree."""
    with pytest.raises(ConfigError, match=f"parameter '{name}' .* or its gradient was replaced by another tensor"):
        raise ConfigError((await errors(monkeypatch, Layers(act)))[0])


def late_layer(model: Layers, count: int) -> None:
    if count == 1:
        model.late = nn.Linear(4, 4)


def replaced_parameter(model: Layers, count: int) -> None:
    model.first.weight = nn.Parameter(model.first.weight.detach().clone())


@pytest.mark.parametrize(
    ("act", "name"), [(late_layer, "late.weight"), (replaced_parameter, "first.weight")], ids=["layer", "parameter"]
)
async def test_a_parameter_that_comes_after_the_start_is_named(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[Layers, int], object], name: str
) -> None:
    """It is in no bucket, and each rank has chosen its own."""
    with pytest.raises(ConfigError, match=f"parameter '{name}' was not there when the training began"):
        raise ConfigError((await errors(monkeypatch, Layers(act)))[0])


async def test_a_parameter_that_was_frozen_at_the_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def thaw(model: Layers, count: int) -> None:
        model.first.requires_grad_(count > 1)

    model = Layers(thaw)
    model.first.requires_grad_(requires_grad=False)
    with pytest.raises(ConfigError, match=r"parameter 'first\.weight' was frozen when the training began"):
        raise ConfigError((await errors(monkeypatch, model))[0])


@pytest.mark.parametrize(("first", "due"), [(1, [1, 2, 4, 8, 10, 16, 20, 30, 32]), (7, [7, 8, 10, 14, 20, 22, 30])])
def test_it_is_due_early_and_then_regularly(first: int, due: list[int]) -> None:
    learner = type("Nothing", (), {"buckets": [], "model": nn.Module()})()
    check = ReplicaCheck(Meeting(1).ring(0), learner, every_steps=10, first_step=first)
    assert [step for step in range(first, 33) if check.is_due(step)] == due


async def test_texts_of_any_length_are_gathered_and_silence_costs_one_call() -> None:
    async def gathered(*texts: str) -> tuple[list[str], list[InMemoryRing]]:
        meeting = Meeting(len(texts))
        rings = [meeting.ring(rank) for rank in range(len(texts))]
        results = await asyncio.gather(*map(gather_texts, rings, texts))
        assert results == [results[0]] * len(texts)
        return results[0], rings

    told, _ = await gathered("", "a larger ä than most", "b")
    assert told == ["", "a larger ä than most", "b"]
    told, rings = await gathered("", "")
    assert (told, rings[0].calls) == (["", ""], ["all_gather"])
