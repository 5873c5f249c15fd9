"""The state of a training run, written so that going on from it leads to the same bits as never having stopped.

A checkpoint of step n is one file for each rank, `step-n.rank-r.pt`, with what only that rank knows (what lossy codecs
still owe, the model's buffers, the state of its random numbers), and one of rank 0, `step-n.pt`, with the model and the
optimizer. Rank 0 writes its file when all the others are on disk: if it is there, the checkpoint is complete. Machines
need not share a disk: each rank reads its own file, and the model comes from rank 0 over the ring.
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
from ringwide.training.resume_check import ResumeTerms, require_equal_models, require_equal_terms
from ringwide.training.samples import Position


def seed_rng(*numbers: int) -> None:
    """Dropout and the like are to differ between ranks, and to be the same when a run is repeated."""
    one = int(numpy.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(one)
    numpy.random.seed(one)
    torch.manual_seed(one)


def rng_state() -> dict[str, Any]:
    """As plain values and tensors, which can be loaded without trusting the file."""
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


FORMAT = 3


def whole_path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09}.pt"


def part_path(directory: Path, step: int, rank: int) -> Path:
    return directory / f"step-{step:09}.rank-{rank}.pt"


def latest(directory: Path) -> Path:
    """The last complete checkpoint in a directory, or in the run that this directory is of."""
    steps = [int(found[1]) for found in _named(checkpoints_in(directory), r"step-(\d+)\.pt")]
    if not steps:
        raise ConfigError(
            f"{directory}: no complete checkpoint to go on from (step-N.pt, here or in 'checkpoints' below); runs write"
            " them if checkpoint.every_steps is set"
        )
    return whole_path(checkpoints_in(directory), max(steps))


def checkpoints_in(directory: Path) -> Path:
    below = directory / "checkpoints"
    return below if below.is_dir() else directory


def holds_any(directory: Path) -> bool:
    """Of whatever rank, complete or not."""
    return any(_named(directory, r"step-(\d+)(\.rank-\d+)?\.pt"))


def steps_of(directory: Path, rank: int) -> list[int]:
    return sorted(int(found[1]) for found in _named(directory, rf"step-(\d+)\.rank-{rank}\.pt"))


def remove(directory: Path, step: int, rank: int) -> None:
    if rank == 0:  # first what makes it complete
        whole_path(directory, step).unlink(missing_ok=True)
    part_path(directory, step, rank).unlink(missing_ok=True)


def remove_unfinished(directory: Path, rank: int) -> None:
    """What this rank was writing when it was killed."""
    ours = rf"step-\d+\.rank-{rank}\.unfinished" + (r"|step-\d+\.unfinished" if rank == 0 else "")
    for found in list(_named(directory, ours)):
        (directory / found[0]).unlink(missing_ok=True)


def _named(directory: Path, pattern: str) -> Iterator[re.Match[str]]:
    names = os.listdir(directory) if directory.is_dir() else []
    return (found for name in names if (found := re.fullmatch(pattern, name)))


def write(path: Path, state: dict[str, Any]) -> None:
    """Whole or not at all: under another name until it is on disk."""
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
    """Torch hides what the disk said behind an error of its own."""
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
        except Exception as error:  # torch raises all kinds of them, for a file that is cut off or is something else
            raise ConfigError(f"{path}: this is not a whole checkpoint ({type(error).__name__})") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ConfigError(f"{path}: this is not a checkpoint of format {FORMAT}")
    return state


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
    """Writes one every so many steps, and keeps the last few."""

    def __init__(self, directory: Path, *, every_steps: int, keep: int) -> None:
        self._directory, self.every_steps, self._keep = directory, every_steps, keep
        self._ours: list[int] = []  # steps, in the order in which they were written; only these are ever removed
        self._saved: int | None = None

    def is_due(self, step: int) -> bool:
        return step % self.every_steps == 0

    async def claim(self, ring: StatefulRing, resume: Path | None) -> None:
        """Called by all ranks before the first step. What another run has left is neither mixed with ours nor removed:
        only the directory that this run goes on from may have checkpoints, and they become its own."""
        continued = resume is not None and checkpoints_in(resume).resolve() == self._directory.resolve()
        taken = holds_any(self._directory) and not continued
        everyone = await ring.all_gather(torch.tensor([taken], dtype=torch.int64))
        refusing = [rank for rank, theirs in enumerate(everyone) if int(theirs[0])]
        if refusing:
            raise ConfigError(
                f"checkpoint.directory: {self._directory}: already holds checkpoints (seen by rank"
                f" {', '.join(map(str, refusing))}); name another directory, remove them, or go on from them with"
                f" --resume {self._directory}"
            )
        self._ours = steps_of(self._directory, ring.rank)

    async def save(self, ring: StatefulRing, terms: ResumeTerms, learner: Learner, position: Position) -> None:
        directory, step, rank = self._directory, position.step, ring.rank
        if self._saved == step:
            return
        self._saved = step
        remove_unfinished(directory, rank)
        await asyncio.to_thread(write, part_path(directory, step, rank), _own_state(ring, learner))
        await ring.barrier()
        if rank == 0:
            state = _shared_state(terms, learner, position)
            await asyncio.to_thread(write, whole_path(directory, step), state)
        await ring.barrier()  # nobody removes the last one before this one is complete
        self._ours = [*(other for other in self._ours if other != step), step]
        while len(self._ours) > self._keep:
            remove(directory, self._ours.pop(0), rank)


async def restore(
    ring: StatefulRing, directory: Path, terms: ResumeTerms, learner: Learner, *, last_step: int | None
) -> Position:
    """Put everything back as it was at the last complete checkpoint."""
    found = torch.zeros(3, dtype=torch.int64)
    if ring.rank == 0:
        found = _restore_shared(directory, terms, learner)
    step, epoch, step_in_epoch = (await ring.broadcast(found)).tolist()
    if last_step is not None and step >= last_step:
        raise ConfigError(
            f"{directory}: the checkpoint is of step {step}, and this run would end after step {last_step}: nothing is"
            " left to train; let it end later, with training.steps or training.epochs"
        )
    await ring.broadcast([*learner.tensors(), *learner.optimizer.state().values()])
    own = read(part_path(checkpoints_in(directory), step, ring.rank))
    ring.load_state_dict(own["ring"])
    restore_rng(own["chance"])
    for buffer, kept in zip(learner.buffers(), own["buffers"], strict=True):
        buffer.copy_(kept)
    return Position(step, epoch, step_in_epoch)


def _own_state(ring: StatefulRing, learner: Learner) -> dict[str, Any]:
    return {"ring": dict(ring.state_dict()), "chance": rng_state(), "buffers": learner.buffers()}


def _shared_state(terms: ResumeTerms, learner: Learner, position: Position) -> dict[str, Any]:
    return {
        "terms": terms.as_state(),
        "position": asdict(position),
        "model": learner.model.state_dict(),
        "optimizer": learner.optimizer.state(),
    }


def _restore_shared(directory: Path, terms: ResumeTerms, learner: Learner) -> torch.Tensor:
    path = latest(directory)
    state = read(path)
    require_equal_terms(ResumeTerms(**state["terms"]), terms, path)
    require_equal_models(state["model"], learner.model.state_dict(), path)
    learner.model.load_state_dict(state["model"])
    for name, tensor in learner.optimizer.state().items():
        tensor.copy_(state["optimizer"][name])
    position = Position(**state["position"])
    return torch.tensor([position.step, position.epoch, position.step_in_epoch], dtype=torch.int64)
