import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from in_memory_ring import Meeting

import ringwide
from local_ring import on_every_rank
from ringwide.errors import ConfigError
from ringwide.training.checkpoint import Checkpoints, latest
from ringwide.training.config import TrainingConfig
from ringwide.training.loop import train
from ringwide.training.progress import Plan, Result

# Adam and a schedule have a memory, and so has a codec that owes what it dropped.
REMEMBERS = {
    "model": "transformer",
    "data": "stdlib",
    "text_bytes": 100_000,
    "width": 16,
    "layers": 1,
    "context": 16,
    "batch_size": 4,
    "optimizer": "adamw",
    "learning_rate": 0.01,
    "schedule": "cosine",
    "decay_steps": 40,
    "bucket_bytes": 8192,
}
LOSSY = {"codec": "int8", "allow_lossy": True, "threshold_bytes": 0, "error_feedback": True, "algorithm": "ring"}
PLAIN = TrainingConfig(hidden_sizes=(8,), batch_size=100, steps=4)


async def run(config: TrainingConfig, directory: Path, resume: Path | None = None, **ring: Any) -> list[Result]:
    async def act(ring: ringwide.Ring) -> Result:
        checkpoints = Checkpoints(directory, every_steps=5, keep=2)
        return await train(ring, config, lambda _: None, checkpoints=checkpoints, resume=resume)

    return await on_every_rank(2, act, **ring)


@pytest.mark.parametrize(
    ("training", "ring"),
    [
        (REMEMBERS, LOSSY),
        ({"hidden_sizes": (16,), "batch_size": 100}, {}),  # 8 steps an epoch: it stops in the middle of the second
    ],
    ids=["transformer-int8", "mlp"],
)
async def test_going_on_leads_to_the_same_bits_as_never_having_stopped(
    tmp_path: Path, training: dict[str, Any], ring: dict[str, Any]
) -> None:
    never_stopped = await run(TrainingConfig(**training, steps=20), tmp_path / "whole", **ring)
    await run(TrainingConfig(**training, steps=12), tmp_path / "first", **ring)
    went_on = await run(TrainingConfig(**training, steps=20), tmp_path / "second", tmp_path / "first", **ring)
    assert {result.fingerprint for result in went_on} == {never_stopped[0].fingerprint}
    assert went_on[0].test_loss == never_stopped[0].test_loss
    assert [result.steps for result in went_on] == [8, 8]


async def test_the_random_numbers_go_on_too(tmp_path: Path) -> None:
    config = TrainingConfig(**REMEMBERS, dropout=0.3, steps=9)

    async def fingerprint(steps: int, **more: Any) -> str:
        ring = Meeting(1).ring(0)
        return (await train(ring, config.model_copy(update={"steps": steps}), lambda _: None, **more)).fingerprint

    whole = await fingerprint(9)
    await fingerprint(4, checkpoints=Checkpoints(tmp_path, every_steps=99, keep=1))
    assert await fingerprint(9, resume=tmp_path) == whole


async def test_what_a_codec_owes_is_part_of_it(tmp_path: Path) -> None:
    """Without it, going on would lead elsewhere: this is what the test above can see."""
    whole = await run(TrainingConfig(**REMEMBERS, steps=12), tmp_path / "whole", **LOSSY)
    await run(TrainingConfig(**REMEMBERS, steps=10), tmp_path / "first", **LOSSY)
    part = tmp_path / "first" / "step-000000010.rank-1.pt"
    state = torch.load(part, weights_only=True)
    assert state["ring"]
    state["ring"] = {}
    torch.save(state, part)
    went_on = await run(TrainingConfig(**REMEMBERS, steps=12), tmp_path / "second", tmp_path / "first", **LOSSY)
    assert went_on[0].fingerprint != whole[0].fingerprint


async def test_the_last_few_are_kept(tmp_path: Path) -> None:
    await run(PLAIN.model_copy(update={"steps": 18}), tmp_path)
    assert sorted(os.listdir(tmp_path)) == [
        f"step-0000000{step}{part}.pt" for step in (15, 18) for part in ("", ".rank-0", ".rank-1")
    ]


async def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    ring, told = Meeting(1).ring(0), []
    await train(ring, PLAIN, told.append, checkpoints=Checkpoints(tmp_path, every_steps=3, keep=9))
    ring, told = Meeting(1).ring(0), []
    await train(ring, PLAIN.model_copy(update={"steps": 6}), told.append, resume=tmp_path)
    assert isinstance(told[0], Plan)
    assert (told[0].first_step, told[0].last_step) == (5, 6)
    assert torch.equal(ring.state["owed"], torch.zeros(3))


def remove(part: str) -> Callable[[Path], None]:
    return lambda directory: (directory / part).unlink()


def overwrite(part: str, content: bytes) -> Callable[[Path], None]:
    return lambda directory: (directory / part).write_bytes(content)


def cut(part: str) -> Callable[[Path], None]:
    return lambda directory: (directory / part).write_bytes((directory / part).read_bytes()[:-500])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (remove("step-000000004.pt"), "no complete checkpoint to go on from"),
        (
            remove("step-000000004.rank-0.pt"),
            r"step-000000004\.rank-0\.pt: the checkpoint cannot be read: No such file",
        ),
        (overwrite("step-000000004.pt", b"hello"), r"step-000000004\.pt: this is not a whole checkpoint"),
        (cut("step-000000004.pt"), r"step-000000004\.pt: this is not a whole checkpoint"),
        (cut("step-000000004.rank-0.pt"), r"rank-0\.pt: this is not a whole checkpoint"),
    ],
)
async def test_what_is_missing_or_broken_is_named(tmp_path: Path, harm: Callable[[Path], None], message: str) -> None:
    await train(Meeting(1).ring(0), PLAIN, lambda _: None, checkpoints=Checkpoints(tmp_path, every_steps=9, keep=1))
    harm(tmp_path)
    with pytest.raises(ConfigError, match=message):
        await train(Meeting(1).ring(0), PLAIN, lambda _: None, resume=tmp_path)


async def test_other_settings_are_refused(tmp_path: Path) -> None:
    await train(Meeting(1).ring(0), PLAIN, lambda _: None, checkpoints=Checkpoints(tmp_path, every_steps=9, keep=1))
    other = PLAIN.model_copy(update={"batch_size": 50})
    with pytest.raises(ConfigError, match=r"written with training\.batch_size: 100, this run has 50"):
        await train(Meeting(1).ring(0), other, lambda _: None, resume=tmp_path)


def test_a_run_directory_is_understood(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for name in ("step-000000002.pt", "step-000000010.pt", "step-000000011.rank-0.pt", "step-000000012.unfinished"):
        (tmp_path / "checkpoints" / name).touch()
    assert latest(tmp_path) == tmp_path / "checkpoints" / "step-000000010.pt"


async def test_a_disk_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    checkpoints = Checkpoints(tmp_path / "file" / "below", every_steps=9, keep=1)
    with pytest.raises(ConfigError, match="the checkpoint cannot be written: Not a directory"):
        await train(Meeting(1).ring(0), PLAIN, lambda _: None, checkpoints=checkpoints)
