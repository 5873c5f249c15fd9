import asyncio
import errno
import fcntl
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_memory_ring import Meeting

import ringwide
from local_ring import on_every_rank
from ringwide.errors import ConfigError
from ringwide.training import checkpoint
from ringwide.training.checkpoint import Checkpoints, checkpoints_in, chosen_step
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
    state = checkpoint.read(part)
    assert state["ring"]
    state["ring"] = {}
    forge(part, state)
    went_on = await run(TrainingConfig(**REMEMBERS, steps=12), tmp_path / "second", tmp_path / "first", **LOSSY)
    assert went_on[0].fingerprint != whole[0].fingerprint


def forge(part: Path, state: dict[str, Any]) -> None:
    """Write another state of rank 1, as if it had been written with the checkpoint."""
    del state["digest"]
    model = part.with_name(part.name.replace(".rank-1", ""))
    shared = checkpoint.read(model)
    del shared["digest"]
    shared["parts"][1] = checkpoint.write(part, state)
    checkpoint.write(model, shared)


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


def flip(part: str) -> Callable[[Path], None]:
    """One bit in the numbers of a tensor, which torch does not look at."""

    def harm(directory: Path) -> None:
        path = directory / part
        content, largest = bytearray(path.read_bytes()), max(ZipFile(path).infolist(), key=lambda info: info.file_size)
        name_length, extra_length = struct.unpack("<HH", content[largest.header_offset + 26 :][:4])
        content[largest.header_offset + 30 + name_length + extra_length + largest.file_size // 2] ^= 1
        path.write_bytes(content)
        torch.load(path, weights_only=True)

    return harm


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            remove("step-000000004.rank-0.pt"),
            r"step-000000004\.rank-0\.pt: the checkpoint cannot be read: No such file or directory; that of",
        ),
        (overwrite("step-000000004.pt", b"hello"), r"step-000000004\.pt: not a complete checkpoint file"),
        (cut("step-000000004.pt"), r"step-000000004\.pt: not a complete checkpoint file"),
        (cut("step-000000004.rank-0.pt"), r"rank-0\.pt: not a complete checkpoint file"),
        (flip("step-000000004.pt"), r"step-000000004\.pt: the checkpoint is damaged: its content is not what was wr"),
        (flip("step-000000004.rank-0.pt"), r"step-000000004\.rank-0\.pt: the checkpoint is damaged"),
    ],
)
async def test_what_is_missing_or_broken_is_named_with_the_one_to_choose(
    tmp_path: Path, harm: Callable[[Path], None], message: str
) -> None:
    await alone(PLAIN, tmp_path)
    harm(tmp_path)
    with pytest.raises(ConfigError, match=message) as raised:
        await train(Meeting(1).ring(0), LONGER, ignore, resume=tmp_path)
    told, choice = str(raised.value).split(" --resume ")
    assert told.endswith("that of step 2 is intact on all ranks: choose it with")
    result = await train(Meeting(1).ring(0), LONGER, ignore, resume=Path(choice))
    assert (result.steps, result.fingerprint) == (4, (await alone(LONGER, tmp_path / "whole")).fingerprint)


async def test_without_another_one_it_is_said_to_start_again(tmp_path: Path) -> None:
    await alone(PLAIN, tmp_path, keep=1)
    flip("step-000000004.pt")(tmp_path)
    with pytest.raises(ConfigError, match="no other checkpoint that all ranks can read: start again"):
        await train(Meeting(1).ring(0), LONGER, ignore, resume=tmp_path)
    remove("step-000000004.pt")(tmp_path)
    with pytest.raises(ConfigError, match="no complete checkpoint to resume from"):
        await train(Meeting(1).ring(0), LONGER, ignore, resume=tmp_path)


async def resumed(size: int, directory: Path, **more: Any) -> list[str]:
    """What every rank is told that resumes from its part of the directory."""
    meeting = Meeting(size)
    ended = await asyncio.gather(
        *(train(meeting.ring(rank), LONGER, ignore, resume=directory, **more) for rank in range(size)),
        return_exceptions=True,
    )
    assert {type(each) for each in ended} == {ConfigError}
    return [str(each) for each in ended]


async def several(size: int, directory: Path, *, seed: int = 0) -> None:
    meeting, config = Meeting(size), PLAIN.model_copy(update={"seed": seed})
    checkpoints = [Checkpoints(directory, every_steps=1, keep=9) for _ in range(size)]
    await asyncio.gather(
        *(train(meeting.ring(rank), config, ignore, checkpoints=each) for rank, each in enumerate(checkpoints))
    )


async def test_all_ranks_hear_what_is_wrong_on_one_and_choose_what_all_have(tmp_path: Path) -> None:
    await several(3, tmp_path)
    flip("step-000000004.rank-2.pt")(tmp_path)
    cut("step-000000003.rank-1.pt")(tmp_path)
    (told, *others) = await resumed(3, tmp_path)
    assert others == [told, told]
    assert told.startswith(f"rank 2: {tmp_path / 'step-000000004.rank-2.pt'}: the checkpoint is damaged")
    assert told.endswith(
        f"; that of step 2 is intact on all ranks: choose it with --resume {tmp_path / 'step-000000002.pt'}"
    )


def of_another_run(directory: Path) -> None:
    name = "step-000000004.rank-1.pt"
    (directory.parent / "theirs" / name).replace(directory / name)


def copy(part: str, name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes((directory / part).read_bytes())


def swap(directory: Path) -> None:
    first, second = directory / "step-000000004.rank-0.pt", directory / "step-000000004.rank-1.pt"
    before = first.read_bytes()
    second.replace(first)
    second.write_bytes(before)


@pytest.mark.parametrize(
    ("mix_up", "message"),
    [
        (of_another_run, "rank 1: {}/step-000000004.rank-1.pt: the file is of another run than the model of rank 0"),
        (
            copy("step-000000003.rank-1.pt", "step-000000004.rank-1.pt"),
            "rank 1: {}/step-000000004.rank-1.pt: the file is that of step 3, rank 1, under another name",
        ),
        (
            copy("step-000000003.pt", "step-000000004.pt"),
            "rank 0: {}/step-000000004.pt: the file is that of step 3, under another name",
        ),
        (
            copy("step-000000004.rank-0.pt", "step-000000004.pt"),
            "rank 0: {}/step-000000004.pt: the file is that of step 4, rank 0, under another name",
        ),
        (swap, "rank 0: {}/step-000000004.rank-0.pt: the file is that of step 4, rank 1, under another name"),
    ],
)
async def test_a_file_that_belongs_elsewhere_is_named_with_the_checkpoint_to_choose(
    tmp_path: Path, mix_up: Callable[[Path], None], message: str
) -> None:
    """Here files of different steps hold the same: there is nothing random in this model, and nothing is owed."""
    ours = tmp_path / "ours"
    await several(2, ours)
    await several(2, tmp_path / "theirs", seed=1)
    mix_up(ours)
    copy("step-000000002.rank-0.pt", "step-000000003.rank-0.pt")(ours)
    advice = f"; put the right one there; that of step 2 is intact on all ranks: choose it with --resume {ours}"
    for told in await resumed(2, ours):
        assert told == message.format(ours) + advice + "/step-000000002.pt"


@pytest.mark.parametrize("size", [1, 3])
async def test_another_number_of_nodes_is_said_and_no_file_is_missed(tmp_path: Path, size: int) -> None:
    await several(2, tmp_path)
    for told in await resumed(size, tmp_path):
        assert told.endswith(f"step-000000004.pt: written by 2 nodes, this run has {size}; use the same number")


@given(st.data())
def test_whichever_bit_flips_the_content_is_the_same_or_it_is_refused(written: bytes, data: st.DataObject) -> None:
    content = bytearray(written)
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with TemporaryDirectory() as directory:
        path = Path(directory, "step-000000001.pt")
        path.write_bytes(content)
        try:
            found = checkpoint.read(path)
        except ConfigError:
            return
    assert torch.equal(found["tensor"], torch.arange(1000.0))
    assert found["terms"] == {"rate": 0.1, "name": "x", "sizes": [1, 2]}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("written") / "step-000000001.pt"
    checkpoint.write(path, {"tensor": torch.arange(1000.0), "terms": {"rate": 0.1, "name": "x", "sizes": [1, 2]}})
    return path.read_bytes()


def test_a_digest_tells_contents_apart() -> None:
    contents = [
        {"a": torch.zeros(2)},
        {"a": torch.zeros(2, 1)},
        {"a": torch.zeros(2, dtype=torch.int32)},
        {"a": -torch.zeros(2)},
        {"b": torch.zeros(2)},
        {"a": [1, 2]},
        {"a": [12]},
        {"a": "1"},
        {"a": 1},
        {"a": 1.0},
        {"a": True},
        {"a": {"b": 1}},
        {"a": torch.zeros(0)},
        {"a": torch.tensor(0.0)},
        {"a": torch.zeros(2, dtype=torch.bfloat16)},
        {"a": torch.zeros(1, dtype=torch.complex64)},
        {"a": torch.eye(2).to_sparse()},
        {"a": {1, 2}},
        {"a": {12}},
        {"a": None},
    ]
    assert len({checkpoint.content_digest(content) for content in contents}) == len(contents)


def test_a_digest_does_not_depend_on_the_order_of_a_set() -> None:
    """That of text differs from process to process."""
    assert checkpoint.content_digest({8, 0}) == checkpoint.content_digest({0, 8})
    assert [*{8, 0}] != [*{0, 8}]


@pytest.mark.parametrize(
    "kept", [numpy.float64(1), numpy.zeros(2), object(), Path("x")], ids=lambda kept: str(type(kept))
)
def test_what_could_not_be_read_back_is_not_written(tmp_path: Path, kept: object) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot be written: it would hold a \w+, which cannot be read back"
    ) as raised:
        checkpoint.write(tmp_path / "step-000000001.pt", {"extra": {"": [kept]}})
    assert "let get_extra_state() return tensors, numbers" in str(raised.value)
    assert not list(tmp_path.iterdir())


async def alone(config: TrainingConfig, directory: Path, *, keep: int = 9, **more: Any) -> Result:
    checkpoints = Checkpoints(directory, every_steps=2, keep=keep)
    return await train(Meeting(1).ring(0), config, ignore, checkpoints=checkpoints, **more)


def ignore(_: object) -> None:
    pass


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
    for error in errors:
        assert isinstance(error, ConfigError)
        where = f"rank 1: checkpoint.directory: {tmp_path / '1'}"
        assert str(error).startswith(f"{where}: already holds checkpoints; name another")
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

    def write(path: Path, state: dict[str, Any]) -> str:
        if path.name == "step-000000004.pt":
            seen.extend(os.listdir(tmp_path))
        return written(path, state)

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
    for named, step in (
        (tmp_path, 10),
        (tmp_path / "checkpoints", 10),
        (tmp_path / "checkpoints/step-000000002.pt", 2),
    ):
        assert (checkpoints_in(named), chosen_step(named)) == (tmp_path / "checkpoints", step)


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


# -- two runs


def locks(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.endswith(".lock"))


@pytest.mark.parametrize("resumes", [True, False])
async def test_a_second_run_in_a_directory_hears_who_has_it(tmp_path: Path, resumes: bool) -> None:
    """Also one that resumes from it: it would remove, and write over, what the first one writes."""
    await several(2, tmp_path)
    refusals: list[str] = []

    async def second_run(message: object) -> None:
        checkpoints = [Checkpoints(tmp_path, every_steps=1, keep=1) for _ in range(2)]
        meeting = Meeting(2)
        ended = await asyncio.gather(
            *(
                train(meeting.ring(rank), LONGER, ignore, checkpoints=each, resume=tmp_path if resumes else None)
                for rank, each in enumerate(checkpoints)
            ),
            return_exceptions=True,
        )
        refusals.extend(map(str, ended))

    meeting, first = Meeting(2), [Checkpoints(tmp_path, every_steps=1, keep=1) for _ in range(2)]

    async def first_run(rank: int) -> None:
        async with first[rank].claim(meeting.ring(rank), tmp_path):
            await asyncio.sleep(0)
            if rank == 0:
                await second_run(None)

    before = sorted(os.listdir(tmp_path))
    await asyncio.gather(*map(first_run, range(2)))
    assert len(refusals) == 2
    for told in refusals:
        assert told.startswith(
            f"rank 0: checkpoint.directory: {tmp_path}: another run writes its checkpoints there: process "
        )
        assert f"process {os.getpid()} on {socket.gethostname()}, since " in told
        assert "wait for its end, or name another directory" in told
    assert sorted(os.listdir(tmp_path)) == before  # neither a lock nor a file of the second


async def test_a_lock_whose_process_is_dead_is_free(tmp_path: Path) -> None:
    await alone(PLAIN, tmp_path)
    code = (
        "import fcntl, os, sys\n"
        "file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print(os.write(file, b'process 1 on another-host'), flush=True)\n"
        "sys.stdin.read()\n"
    )
    how = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(tmp_path / "rank-0.lock"), **how)
    assert other.stdout is not None
    await other.stdout.readline()
    with pytest.raises(ConfigError, match="another run writes its checkpoints there: process 1 on another-host; wait"):
        await alone(LONGER, tmp_path, resume=tmp_path)
    other.kill()
    await other.wait()
    assert locks(tmp_path) == ["rank-0.lock"]  # left behind, with the name of a dead process
    assert (await alone(LONGER, tmp_path, resume=tmp_path)).steps == 2
    assert locks(tmp_path) == []


def test_a_lock_that_is_removed_while_it_is_opened_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between open and flock its holder ends, and a third process makes a new one."""
    third, flock, calls = checkpoint.DirectoryLock(tmp_path), fcntl.flock, []

    def meanwhile(file: int, how: int) -> None:
        calls.append(file)
        if len(calls) == 1:
            (tmp_path / "rank-0.lock").unlink()
            third.take(0)
        flock(file, how)

    monkeypatch.setattr(checkpoint.fcntl, "flock", meanwhile)
    with pytest.raises(ConfigError, match="another run writes its checkpoints there"):
        checkpoint.DirectoryLock(tmp_path).take(0)
    third.release()


def test_a_file_system_without_locks_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(checkpoint.fcntl, "flock", flock)
    lock = checkpoint.DirectoryLock(tmp_path)
    lock.take(0)
    lock.release()
    assert f"{tmp_path}: not locked against other runs: No locks available" in caplog.text


async def test_who_goes_back_removes_what_lies_ahead_first(tmp_path: Path) -> None:
    await alone(PLAIN.model_copy(update={"steps": 8}), tmp_path, keep=9)  # 2, 4, 6, 8
    await alone(LONGER, tmp_path, keep=3, resume=tmp_path / "step-000000004.pt")
    assert sorted(checkpoint.complete_steps(tmp_path)) == [2, 4, 6]
