"""The files of checkpoints: what they are called, and how they are written, read and found."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ringwide.errors import ConfigError

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
