import asyncio
from typing import Any

import pytest
import torch
from in_memory_ring import Meeting

from ringwide.errors import ConfigError
from ringwide.training.agreement import agree
from ringwide.training.config import TrainingConfig
from ringwide.training.samples import Data, TensorSamples

CONFIG = TrainingConfig(model="own:model", model_options={"width": 3, "depth": {"a": 1, "b": 2}})


def data(first: float = 0.0, test: float = 0.0) -> Data:
    samples = [TensorSamples(torch.full((4, 2), value), torch.arange(4)) for value in (first, test)]
    return Data(train=samples[0], test=samples[1], inputs=(2,), outputs=4)


def changed(**settings: Any) -> TrainingConfig:
    return CONFIG.model_copy(update=settings)


async def errors(*others: tuple[int, dict[str, Any]]) -> list[str]:
    """What each of three ranks says, those that are not given being like the first."""
    meeting = Meeting(3)
    first = {"config": CONFIG, "data": data()}
    outcomes = await asyncio.gather(
        *(agree(meeting.ring(rank), **first | dict(others).get(rank, {})) for rank in range(3)), return_exceptions=True
    )
    for outcome in outcomes:
        assert outcome == data().fingerprint() or isinstance(outcome, ConfigError), outcome
    return [str(outcome) if isinstance(outcome, ConfigError) else "" for outcome in outcomes]


async def test_who_is_the_same_agrees() -> None:
    same = {"config": changed(model_options={"depth": {"b": 2, "a": 1}, "width": 3}), "data": data()}
    assert await errors((1, same)) == ["", "", ""]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"config": changed(learning_rate=0.2)}, "settings under 'training'"),
        ({"config": changed(model_options={"width": 4})}, "settings under 'training'"),
        ({"data": data(first=1.0)}, "data 'digits'"),
        ({"data": data(test=1.0)}, "data 'digits'"),
        ({"saves_every": 5}, "'checkpoint.every_steps'"),
        ({"resumes": True}, "use of --resume"),
    ],
    ids=["settings", "options", "data", "test data", "checkpoints", "resume"],
)
async def test_who_differs_is_named_by_every_rank(other: dict[str, Any], what: str) -> None:
    for rank, error in enumerate(await errors((2, other))):
        assert error.startswith(f"training: rank 2 has other {what} than rank 0 (this is rank {rank}); give every node")


async def test_all_who_differ_are_named() -> None:
    other = {"config": changed(seed=1)}
    (error, *_) = await errors((1, other), (2, other))
    assert error.startswith("training: rank 1, 2 has other settings")


async def test_if_everything_differs_the_settings_come_first() -> None:
    other = {"config": changed(data="own:data"), "data": data(first=1.0), "resumes": True}
    (error, *_) = await errors((1, other))
    assert "settings under 'training'" in error
