import asyncio
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from in_memory_ring import Meeting
from torch import nn

import ringwide
from local_ring import on_every_rank
from ringwide.errors import ConfigError
from ringwide.training import checkpoint
from ringwide.training.checkpoint import Checkpoints, latest
from ringwide.training.config import TrainingConfig
from ringwide.training.loop import train
from ringwide.training.progress import Result, TrainingPlan

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
LONGER = PLAIN.model_copy(update={"steps": 6})


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
    assert isinstance(told[0], TrainingPlan)
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
        (remove("step-000000004.pt"), "no complete checkpoint to resume from"),
        (
            remove("step-000000004.rank-0.pt"),
            r"step-000000004\.rank-0\.pt: the checkpoint cannot be read: No such file",
        ),
        (overwrite("step-000000004.pt", b"hello"), r"step-000000004\.pt: not a complete checkpoint file"),
        (cut("step-000000004.pt"), r"step-000000004\.pt: not a complete checkpoint file"),
        (cut("step-000000004.rank-0.pt"), r"rank-0\.pt: not a complete checkpoint file"),
    ],
)
async def test_what_is_missing_or_broken_is_named(tmp_path: Path, harm: Callable[[Path], None], message: str) -> None:
    await train(Meeting(1).ring(0), PLAIN, lambda _: None, checkpoints=Checkpoints(tmp_path, every_steps=9, keep=1))
    harm(tmp_path)
    with pytest.raises(ConfigError, match=message):
        await train(Meeting(1).ring(0), LONGER, lambda _: None, resume=tmp_path)


# -- going on with something else


async def refusal(config: TrainingConfig, resume: Path, **more: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        await train(Meeting(1).ring(0), config, ignore, resume=resume, **more)
    assert "\n" not in str(raised.value)
    return str(raised.value)


async def alone(config: TrainingConfig, directory: Path, *, keep: int = 9, **more: Any) -> Result:
    checkpoints = Checkpoints(directory, every_steps=2, keep=keep)
    return await train(Meeting(1).ring(0), config, ignore, checkpoints=checkpoints, **more)


def ignore(_: object) -> None:
    pass


async def test_other_settings_are_refused(tmp_path: Path) -> None:
    await alone(PLAIN, tmp_path)
    told = await refusal(LONGER.model_copy(update={"batch_size": 50}), tmp_path)
    assert "step-000000004.pt: written with training.batch_size: 100, this run has 50" in told


async def test_other_settings_of_the_ring_are_refused(tmp_path: Path) -> None:
    await alone(PLAIN, tmp_path, ring_settings={"codec": "int8", "lanes": 1})
    told = await refusal(LONGER, tmp_path, ring_settings={"codec": "none", "lanes": 1})
    assert "written with ring.codec: 'int8', this run has 'none'; use the same" in told


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
async def test_an_end_that_moves_the_learning_rate_is_refused_with_the_cure(tmp_path: Path, schedule: str) -> None:
    falling = PLAIN.model_copy(update={"schedule": schedule})
    await alone(falling, tmp_path)
    longer = falling.model_copy(update={"steps": 6})
    told = await refusal(longer, tmp_path)
    assert "decays until step 4, in this run it would decay until step 6; set training.decay_steps: 4" in told
    cured = longer.model_copy(update={"decay_steps": 4})
    assert (await train(Meeting(1).ring(0), cured, ignore, resume=tmp_path)).steps == 2


async def test_other_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "changing_data.py").write_text(
        "import torch\nVALUE = 1.0\n"
        "def data(): return [(torch.full((8, 3), VALUE), torch.arange(8) % 2) for _ in range(2)]\n"
    )
    config = PLAIN.model_copy(update={"data": "changing_data:data", "batch_size": 2})
    await alone(config, tmp_path / "kept")
    monkeypatch.setattr("changing_data.VALUE", 2.0)
    told = await refusal(config.model_copy(update={"steps": 6}), tmp_path / "kept")
    assert "written with other data than training.data: 'changing_data:data' gives now" in told


@pytest.mark.parametrize("steps", [3, 4])
async def test_a_run_that_is_already_past_its_end_is_refused(tmp_path: Path, steps: int) -> None:
    await alone(PLAIN, tmp_path)
    told = await refusal(PLAIN.model_copy(update={"steps": steps}), tmp_path)
    assert f"the checkpoint is of step 4, and this run would end after step {steps}: nothing is left to train" in told


async def test_another_model_is_refused_by_its_first_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await alone(PLAIN, tmp_path)
    for other, difference in (
        (nn.Sequential(nn.Linear(64, 10)), "'0.weight' was float32 of shape (8, 64) then, and is"),
        (nn.Linear(64, 10), "'weight' was not there then, and is float32 of shape (10, 64) in this run"),
    ):
        monkeypatch.setattr("ringwide.training.loop.build_model", lambda config, data, other=other: other)
        assert difference in await refusal(LONGER, tmp_path)


# -- directories


async def test_a_directory_with_checkpoints_of_another_run_is_refused_on_all_ranks(tmp_path: Path) -> None:
    """Also where disks are not shared and only one of them has some."""
    meeting, told = Meeting(2), []
    await alone(PLAIN, tmp_path / "1")
    before = sorted(os.listdir(tmp_path / "1"))
    checkpoints = [Checkpoints(tmp_path / str(rank), every_steps=1, keep=1) for rank in range(2)]
    errors = await asyncio.gather(
        *(train(meeting.ring(rank), PLAIN, told.append, checkpoints=each) for rank, each in enumerate(checkpoints)),
        return_exceptions=True,
    )
    for rank, error in enumerate(errors):
        assert isinstance(error, ConfigError)
        assert f"checkpoint.directory: {tmp_path / str(rank)}: already holds checkpoints (seen by rank 1)" in str(error)
    assert told == []
    assert sorted(os.listdir(tmp_path / "1")) == before


async def test_who_goes_on_in_the_same_directory_removes_what_is_superseded(tmp_path: Path) -> None:
    await alone(PLAIN, tmp_path, keep=2)
    # A longer run was killed while it wrote its next one.
    (tmp_path / "step-000000006.rank-0.pt").touch()
    await alone(PLAIN.model_copy(update={"steps": 7}), tmp_path, keep=2, resume=tmp_path)
    assert sorted(os.listdir(tmp_path)) == [
        f"step-00000000{step}{part}.pt" for step in (6, 7) for part in ("", ".rank-0")
    ]


async def test_who_goes_on_elsewhere_leaves_what_it_came_from(tmp_path: Path) -> None:
    await alone(PLAIN, tmp_path / "first")
    before = sorted(os.listdir(tmp_path / "first"))
    await alone(LONGER, tmp_path / "second", keep=1, resume=tmp_path / "first")
    assert sorted(os.listdir(tmp_path / "first")) == before


async def test_the_last_one_is_there_until_the_next_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 has nothing more to write, but must not remove its part before rank 0 has written the whole."""
    meeting, seen = Meeting(2), []
    written = checkpoint.write

    def write(path: Path, state: dict[str, Any]) -> None:
        if path.name == "step-000000004.pt":
            seen.extend(os.listdir(tmp_path))
        written(path, state)

    monkeypatch.setattr(checkpoint, "write", write)
    await asyncio.gather(
        *(
            train(meeting.ring(rank), PLAIN, ignore, checkpoints=Checkpoints(tmp_path, every_steps=2, keep=1))
            for rank in range(2)
        )
    )
    assert {"step-000000002.pt", "step-000000002.rank-0.pt", "step-000000002.rank-1.pt"} <= set(seen)


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


@contextmanager
def small_files() -> Iterator[None]:
    """No file may grow beyond what a disk that is nearly full would take: not even the one that pytest writes to."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised, small_files():
        checkpoint.write(tmp_path / "step-000000001.pt", {"large": torch.ones(100_000)})
    assert str(raised.value) == f"{tmp_path / 'step-000000001.pt'}: the checkpoint cannot be written: File too large"
    assert os.listdir(tmp_path) == []


def test_what_torch_says_of_a_full_disk_is_passed_on_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("file write failed\nException raised from valid at inline_container.cc")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(ConfigError, match=r"step-000000001\.pt: the checkpoint cannot be written: file write failed$"):
        checkpoint.write(tmp_path / "step-000000001.pt", {})
    assert os.listdir(tmp_path) == []


async def test_what_a_killed_rank_was_writing_is_removed_by_its_next_save(tmp_path: Path) -> None:
    others = {"step-000000001.rank-1.unfinished", "notes.unfinished"}
    for name in ("step-000000001.rank-0.unfinished", "step-000000001.unfinished", *others):
        (tmp_path / name).touch()
    await alone(PLAIN, tmp_path)
    assert {name for name in os.listdir(tmp_path) if name.endswith(".unfinished")} == others
