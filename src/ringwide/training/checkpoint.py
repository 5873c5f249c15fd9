"""The state of a training run, written so that going on from it leads to the same bits as never having stopped.

A checkpoint of step n is one file for each rank, `step-n.rank-r.pt`, with what only that rank knows (what lossy codecs
still owe, the model's buffers, the state of its random numbers), and one of rank 0, `step-n.pt`, with the model and the
optimizer. Rank 0 writes its file when all the others are on disk: if it is there, the checkpoint is complete. Machines
need not share a disk: each rank reads its own file, and the model comes from rank 0 over the ring.
"""

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from ringwide.errors import ConfigError
from ringwide.training import chance
from ringwide.training.config import TrainingConfig
from ringwide.training.course import Position
from ringwide.training.learner import Learner

FORMAT = 2
# What may differ when a run goes on: when it ends and what it looks at on the way, not what it computes.
MAY_CHANGE = {"steps", "epochs", "seconds", "evaluate_every_steps", "overlap"}


class Ring(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    async def barrier(self) -> None: ...
    async def broadcast(self, tensors: Any, root: int = 0) -> Any: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Checkpoints:
    """Writes one every so many steps, and keeps the last few."""

    def __init__(self, directory: Path, *, every_steps: int, keep: int) -> None:
        self._directory, self.every_steps, self._keep = directory, every_steps, keep
        self._written: int | None = None

    def is_due(self, step: int) -> bool:
        return step % self.every_steps == 0

    async def save(self, ring: Ring, config: TrainingConfig, learner: Learner, position: Position) -> None:
        if self._written == position.step:
            return
        self._written = position.step
        await asyncio.to_thread(
            _write, _part_path(self._directory, position.step, ring.rank), _own_state(ring, learner)
        )
        await ring.barrier()
        if ring.rank == 0:
            state = _shared_state(ring, config, learner, position)
            await asyncio.to_thread(_write, _path(self._directory, position.step), state)
        _remove_old(self._directory, ring.rank, self._keep)


async def restore(ring: Ring, directory: Path, config: TrainingConfig, learner: Learner) -> Position:
    """Put everything back as it was at the last complete checkpoint."""
    found = torch.zeros(3, dtype=torch.int64)
    if ring.rank == 0:
        found = _restore_shared(ring, directory, config, learner)
    step, epoch, step_in_epoch = (await ring.broadcast(found)).tolist()
    await ring.broadcast([*learner.tensors(), *learner.optimizer.state().values()])
    own = _read(_part_path(_checkpoints_in(directory), step, ring.rank))
    ring.load_state_dict(own["ring"])
    chance.restore(own["chance"])
    for buffer, kept in zip(learner.buffers(), own["buffers"], strict=True):
        buffer.copy_(kept)
    return Position(step, epoch, step_in_epoch)


def _own_state(ring: Ring, learner: Learner) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "ring": dict(ring.state_dict()),
        "chance": chance.state(),
        "buffers": learner.buffers(),
    }


def _shared_state(ring: Ring, config: TrainingConfig, learner: Learner, position: Position) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "nodes": ring.size,
        "training": _lasting(config),
        "position": asdict(position),
        "model": learner.model.state_dict(),
        "optimizer": learner.optimizer.state(),
    }


def _lasting(config: TrainingConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude=MAY_CHANGE)


def _restore_shared(ring: Ring, directory: Path, config: TrainingConfig, learner: Learner) -> torch.Tensor:
    path = latest(directory)
    state = _read(path)
    if state["nodes"] != ring.size:
        raise ConfigError(f"{path}: written by {state['nodes']} nodes, this run has {ring.size}; use as many")
    now = _lasting(config)
    changed = sorted(key for key in now.keys() | state["training"].keys() if now.get(key) != state["training"].get(key))
    if changed:
        was, wanted = state["training"].get(changed[0]), now.get(changed[0])
        raise ConfigError(f"{path}: written with training.{changed[0]}: {was!r}, this run has {wanted!r}; use the same")
    learner.model.load_state_dict(state["model"])
    _copy(state["optimizer"], learner.optimizer.state())
    position = Position(**state["position"])
    return torch.tensor([position.step, position.epoch, position.step_in_epoch], dtype=torch.int64)


def _copy(given: Mapping[str, torch.Tensor], into: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in into.items():
        tensor.copy_(given[name])


def latest(directory: Path) -> Path:
    """The last complete checkpoint in a directory, or in the run that this directory is of."""
    steps = _steps(_checkpoints_in(directory), r"step-(\d+)\.pt")
    if not steps:
        raise ConfigError(
            f"{directory}: no complete checkpoint to go on from (step-N.pt, here or in 'checkpoints' below); runs write"
            " them if checkpoint.every_steps is set"
        )
    return _path(_checkpoints_in(directory), max(steps))


def _checkpoints_in(directory: Path) -> Path:
    below = directory / "checkpoints"
    return below if below.is_dir() else directory


def _steps(directory: Path, pattern: str) -> list[int]:
    names = os.listdir(directory) if directory.is_dir() else []
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(pattern, name)))


def _remove_old(directory: Path, rank: int, keep: int) -> None:
    if rank == 0:  # first what makes them complete
        for step in _steps(directory, r"step-(\d+)\.pt")[:-keep]:
            _path(directory, step).unlink(missing_ok=True)
    for step in _steps(directory, rf"step-(\d+)\.rank-{rank}\.pt")[:-keep]:
        _part_path(directory, step, rank).unlink(missing_ok=True)


def _path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09}.pt"


def _part_path(directory: Path, step: int, rank: int) -> Path:
    return directory / f"step-{step:09}.rank-{rank}.pt"


def _write(path: Path, state: dict[str, Any]) -> None:
    """Whole or not at all: under another name until it is on disk."""
    unfinished = path.with_suffix(".unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise ConfigError(f"{path}: the checkpoint cannot be written: {error.strerror}") from error


def _read(path: Path) -> dict[str, Any]:
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
