"""Checkpoints of a training run. A run that resumes from one computes the same bits as one that never stopped.

A checkpoint of step n consists of one file per rank, `step-n.rank-r.pt`, with the state of that rank alone (error
feedback of lossy codecs, the model's buffers, its random number generators), and one of rank 0, `step-n.pt`, with the
model and the optimizer. Rank 0 writes its file when all others are on disk, so its presence means that the checkpoint
is complete. Machines need not share a disk: each rank reads its own file, and gets the model from rank 0 over the
ring.
"""

import asyncio
import os
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch

from ringwide.errors import ConfigError
from ringwide.training.learner import Learner
from ringwide.training.resume_check import ResumeSettings, require_equal_models, require_same_settings
from ringwide.training.samples import Position

FORMAT = 3


class StatefulRing(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    async def barrier(self) -> None: ...
    async def broadcast(self, tensors: Any, root: int = 0) -> Any: ...
    async def all_gather(self, tensor: Any) -> list[Any]: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Checkpoints:
    """Writer of checkpoints, which keeps the last few."""

    def __init__(self, directory: Path, *, every_steps: int, keep: int) -> None:
        self._directory, self.every_steps, self._keep = directory, every_steps, keep
        self._ours: list[int] = []  # steps of this run's checkpoints in the order written; only these are ever removed
        self._saved: int | None = None

    def is_due(self, step: int) -> bool:
        return step % self.every_steps == 0

    async def claim(self, ring: StatefulRing, resume: Path | None) -> None:
        """Take over the directory; all ranks call this before the first step.

        Checkpoints of another run are neither mixed with ours nor removed: the directory must be empty of them, unless
        this run resumes from it. Then its checkpoints become ours.
        """
        continued = resume is not None and checkpoints_in(resume).resolve() == self._directory.resolve()
        taken = holds_any(self._directory) and not continued
        everyone = await ring.all_gather(torch.tensor([taken], dtype=torch.int64))
        refusing = [rank for rank, theirs in enumerate(everyone) if int(theirs[0])]
        if refusing:
            raise ConfigError(
                f"checkpoint.directory: {self._directory}: already holds checkpoints (seen by rank"
                f" {', '.join(map(str, refusing))}); name another directory, remove them, or resume from them with"
                f" --resume {self._directory}"
            )
        self._ours = steps_of(self._directory, ring.rank)

    async def save(self, ring: StatefulRing, settings: ResumeSettings, learner: Learner, position: Position) -> None:
        directory, step, rank = self._directory, position.step, ring.rank
        if self._saved == step:
            return
        self._saved = step
        remove_unfinished(directory, rank)
        await asyncio.to_thread(write, rank_path(directory, step, rank), _rank_state(ring, learner))
        await ring.barrier()
        if rank == 0:
            state = _shared_state(settings, learner, position)
            await asyncio.to_thread(write, model_path(directory, step), state)
        await ring.barrier()  # no rank removes an older one before this one is complete
        self._ours = [*(other for other in self._ours if other != step), step]
        while len(self._ours) > self._keep:
            remove(directory, self._ours.pop(0), rank)


async def restore(
    ring: StatefulRing, directory: Path, settings: ResumeSettings, learner: Learner, *, last_step: int | None
) -> Position:
    """Restore the state of the last complete checkpoint, and return its position."""
    found = torch.zeros(3, dtype=torch.int64)
    if ring.rank == 0:
        found = _restore_shared(directory, settings, learner)
    step, epoch, step_in_epoch = (await ring.broadcast(found)).tolist()
    if last_step is not None and step >= last_step:
        raise ConfigError(
            f"{directory}: the checkpoint is of step {step}, and this run would end after step {last_step}: nothing is"
            " left to train; let it end later, with training.steps or training.epochs"
        )
    await ring.broadcast([*learner.tensors(), *learner.optimizer.state().values()])
    state = read(rank_path(checkpoints_in(directory), step, ring.rank))
    ring.load_state_dict(state["ring"])
    restore_rng(state["chance"])
    for buffer, kept in zip(learner.buffers(), state["buffers"], strict=True):
        buffer.copy_(kept)
    return Position(step, epoch, step_in_epoch)


def _rank_state(ring: StatefulRing, learner: Learner) -> dict[str, Any]:
    return {"ring": dict(ring.state_dict()), "chance": rng_state(), "buffers": learner.buffers()}


def _shared_state(settings: ResumeSettings, learner: Learner, position: Position) -> dict[str, Any]:
    return {
        "terms": settings.as_state(),
        "position": asdict(position),
        "model": learner.model.state_dict(),
        "optimizer": learner.optimizer.state(),
    }


def _restore_shared(directory: Path, settings: ResumeSettings, learner: Learner) -> torch.Tensor:
    path = latest(directory)
    state = read(path)
    require_same_settings(ResumeSettings(**state["terms"]), settings, path)
    require_equal_models(state["model"], learner.model.state_dict(), path)
    learner.model.load_state_dict(state["model"])
    for name, tensor in learner.optimizer.state().items():
        tensor.copy_(state["optimizer"][name])
    position = Position(**state["position"])
    return torch.tensor([position.step, position.epoch, position.step_in_epoch], dtype=torch.int64)


# -- files


def model_path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09}.pt"


def rank_path(directory: Path, step: int, rank: int) -> Path:
    return directory / f"step-{step:09}.rank-{rank}.pt"


def latest(directory: Path) -> Path:
    """Last complete checkpoint in a directory of checkpoints or of a run."""
    steps = [int(found[1]) for found in _named(checkpoints_in(directory), r"step-(\d+)\.pt")]
    if not steps:
        raise ConfigError(
            f"{directory}: no complete checkpoint to resume from (step-N.pt, here or in 'checkpoints'); runs write"
            " them if checkpoint.every_steps is set"
        )
    return model_path(checkpoints_in(directory), max(steps))


def checkpoints_in(directory: Path) -> Path:
    below = directory / "checkpoints"
    return below if below.is_dir() else directory


def holds_any(directory: Path) -> bool:
    """Whether there is a checkpoint of any rank, complete or not."""
    return any(_named(directory, r"step-(\d+)(\.rank-\d+)?\.pt"))


def steps_of(directory: Path, rank: int) -> list[int]:
    return sorted(int(found[1]) for found in _named(directory, rf"step-(\d+)\.rank-{rank}\.pt"))


def remove(directory: Path, step: int, rank: int) -> None:
    if rank == 0:  # first the file that marks it complete
        model_path(directory, step).unlink(missing_ok=True)
    rank_path(directory, step, rank).unlink(missing_ok=True)


def remove_unfinished(directory: Path, rank: int) -> None:
    """Remove files that this rank was writing when it was killed."""
    ours = rf"step-\d+\.rank-{rank}\.unfinished" + (r"|step-\d+\.unfinished" if rank == 0 else "")
    for found in list(_named(directory, ours)):
        (directory / found[0]).unlink(missing_ok=True)


def _named(directory: Path, pattern: str) -> Iterator[re.Match[str]]:
    names = os.listdir(directory) if directory.is_dir() else []
    return (found for name in names if (found := re.fullmatch(pattern, name)))


def write(path: Path, state: dict[str, Any]) -> None:
    """Write the file atomically: it has another name until it is on disk."""
    unfinished = path.with_suffix(".unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            unfinished.unlink()
        raise ConfigError(f"{path}: the checkpoint cannot be written: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Reason of the operating system, which torch wraps in an error of its own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).partition("\n")[0]


def read(path: Path) -> dict[str, Any]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path}: the checkpoint cannot be read: {error.strerror}") from error
    with file:
        try:
            state: dict[str, Any] = torch.load(file, weights_only=True)
        except Exception as error:  # torch raises many kinds for a truncated or foreign file
            raise ConfigError(f"{path}: not a complete checkpoint file ({type(error).__name__})") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ConfigError(f"{path}: not a checkpoint of format {FORMAT}")
    return state


# -- random number generators


def seed_rng(*numbers: int) -> None:
    """Seed all generators. Dropout must differ between ranks, and be the same when a run is repeated."""
    one = int(numpy.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(one)
    numpy.random.seed(one)
    torch.manual_seed(one)


def rng_state() -> dict[str, Any]:
    """State of all generators as plain values and tensors, which can be loaded without trusting the file."""
    kind, keys, *rest = numpy.random.get_state()
    return {
        "random": random.getstate(),
        "numpy": (kind, torch.from_numpy(numpy.asarray(keys, dtype="int64")), *rest),
        "torch": torch.get_rng_state(),
    }


def restore_rng(state: dict[str, Any]) -> None:
    random.setstate(state["random"])
    kind, keys, *rest = state["numpy"]
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))
    torch.set_rng_state(state["torch"])
