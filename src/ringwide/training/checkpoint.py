"""The state of a training run, written so that going on from it leads to the same bits as never having stopped.

A checkpoint of step n is one file for each rank, `step-n.rank-r.pt`, with what only that rank knows (what lossy codecs
still owe, the model's buffers, the state of its random numbers), and one of rank 0, `step-n.pt`, with the model and the
optimizer. Rank 0 writes its file when all the others are on disk: if it is there, the checkpoint is complete. Machines
need not share a disk: each rank reads its own file, and the model comes from rank 0 over the ring.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from ringwide.errors import ConfigError
from ringwide.training import chance
from ringwide.training import checkpoint_files as files
from ringwide.training.course import Position
from ringwide.training.learner import Learner
from ringwide.training.terms import Terms, require_equal_models, require_equal_terms


class Ring(Protocol):
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

    async def claim(self, ring: Ring, resume: Path | None) -> None:
        """Called by all ranks before the first step. What another run has left is neither mixed with ours nor removed:
        only the directory that this run goes on from may have checkpoints, and they become its own."""
        continued = resume is not None and files.checkpoints_in(resume).resolve() == self._directory.resolve()
        taken = files.holds_any(self._directory) and not continued
        everyone = await ring.all_gather(torch.tensor([taken], dtype=torch.int64))
        refusing = [rank for rank, theirs in enumerate(everyone) if int(theirs[0])]
        if refusing:
            raise ConfigError(
                f"checkpoint.directory: {self._directory}: already holds checkpoints (seen by rank"
                f" {', '.join(map(str, refusing))}); name another directory, remove them, or go on from them with"
                f" --resume {self._directory}"
            )
        self._ours = files.steps_of(self._directory, ring.rank)

    async def save(self, ring: Ring, terms: Terms, learner: Learner, position: Position) -> None:
        directory, step, rank = self._directory, position.step, ring.rank
        if self._saved == step:
            return
        self._saved = step
        files.remove_unfinished(directory, rank)
        await asyncio.to_thread(files.write, files.part_path(directory, step, rank), _own_state(ring, learner))
        await ring.barrier()
        if rank == 0:
            state = _shared_state(terms, learner, position)
            await asyncio.to_thread(files.write, files.whole_path(directory, step), state)
        await ring.barrier()  # nobody removes the last one before this one is complete
        self._ours = [*(other for other in self._ours if other != step), step]
        while len(self._ours) > self._keep:
            files.remove(directory, self._ours.pop(0), rank)


async def restore(ring: Ring, directory: Path, terms: Terms, learner: Learner, *, last_step: int | None) -> Position:
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
    own = files.read(files.part_path(files.checkpoints_in(directory), step, ring.rank))
    ring.load_state_dict(own["ring"])
    chance.restore(own["chance"])
    for buffer, kept in zip(learner.buffers(), own["buffers"], strict=True):
        buffer.copy_(kept)
    return Position(step, epoch, step_in_epoch)


def _own_state(ring: Ring, learner: Learner) -> dict[str, Any]:
    return {"ring": dict(ring.state_dict()), "chance": chance.state(), "buffers": learner.buffers()}


def _shared_state(terms: Terms, learner: Learner, position: Position) -> dict[str, Any]:
    return {
        "terms": terms.as_state(),
        "position": asdict(position),
        "model": learner.model.state_dict(),
        "optimizer": learner.optimizer.state(),
    }


def _restore_shared(directory: Path, terms: Terms, learner: Learner) -> torch.Tensor:
    path = files.latest(directory)
    state = files.read(path)
    require_equal_terms(Terms(**state["terms"]), terms, path)
    require_equal_models(state["model"], learner.model.state_dict(), path)
    learner.model.load_state_dict(state["model"])
    for name, tensor in learner.optimizer.state().items():
        tensor.copy_(state["optimizer"][name])
    position = Position(**state["position"])
    return torch.tensor([position.step, position.epoch, position.step_in_epoch], dtype=torch.int64)
