"""Checkpoints of a training run. A run that resumes from one computes the same bits as one that never stopped.

A checkpoint of step n consists of one file per rank, `step-n.rank-r.pt`, with the state of that rank alone (error
feedback of lossy codecs, the model's buffers and extra state, its random number generators), and one of rank 0,
`step-n.pt`, with the model and the optimizer. Rank 0 writes its file when all others are on disk, so its presence means
that the checkpoint is complete. Machines need not share a disk: each rank reads its own file, and gets the model from
rank 0 over the ring. Every file carries its step and a digest of its content, and that of rank 0 also the digests of
all others, so that a damaged file, or one of another run or step, is not taken for what was written. A lock keeps other
runs from writing to the same directory.
"""

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import random
import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor, nn

from ringwide.errors import ConfigError
from ringwide.training.agreement import gather_bytes, together
from ringwide.training.learner import Learner, memory_of
from ringwide.training.samples import Position

logger = logging.getLogger("ringwide.training")
FORMAT = 5


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
    def algorithm_for(self, nbytes: int) -> str: ...


class Checkpoints:
    """Writer of checkpoints, which keeps the last few."""

    def __init__(self, directory: Path, *, every_steps: int, keep: int) -> None:
        self._directory, self.every_steps, self._keep = directory, every_steps, keep
        self._ours: list[int] = []  # steps of this run's checkpoints in the order written; only these are ever removed
        self._saved: int | None = None

    def is_due(self, step: int) -> bool:
        return step % self.every_steps == 0

    @asynccontextmanager
    async def claim(self, ring: StatefulRing, resume: Path | None) -> AsyncIterator[None]:
        """Own the directory for the length of the block, which all ranks enter before the first step.

        Checkpoints of another run are neither mixed with ours nor removed: the directory must be empty of them, unless
        this run resumes from it. Then its checkpoints become ours. No other run may write to it meanwhile.
        """
        lock = DirectoryLock(self._directory)
        try:
            await together(ring, lambda: lock.take(ring.rank))
            await together(ring, lambda: self._require_no_others(resume))
            self._ours = steps_of(self._directory, ring.rank)
            yield
        finally:
            lock.release()

    def _require_no_others(self, resume: Path | None) -> None:
        continued = resume is not None and checkpoints_in(resume).resolve() == self._directory.resolve()
        if holds_any(self._directory) and not continued:
            raise ConfigError(
                f"checkpoint.directory: {self._directory}: already holds checkpoints; name another directory, remove"
                f" them, or resume from them with --resume {self._directory}"
            )

    def resumed_at(self, step: int) -> None:
        """Note where this run goes on: what lies behind that is superseded, and removed first."""
        self._ours.sort(key=lambda ours: (ours <= step, ours))

    async def save(self, ring: StatefulRing, settings: Mapping[str, Any], learner: Learner, position: Position) -> None:
        directory, step, rank = self._directory, position.step, ring.rank
        if self._saved == step:
            return
        self._saved = step
        remove_unfinished(directory, rank)
        digest = await asyncio.to_thread(write, rank_path(directory, step, rank), _rank_state(ring, learner, step))
        parts = [theirs.hex() for theirs in await gather_bytes(ring, bytes.fromhex(digest))]  # all are on disk
        if rank == 0:
            state = _shared_state(settings, learner, position) | {"parts": parts}
            await asyncio.to_thread(write, model_path(directory, step), state)
        await ring.barrier()  # no rank removes an older one before this one is complete
        self._ours = [*(other for other in self._ours if other != step), step]
        while len(self._ours) > self._keep:
            remove(directory, self._ours.pop(0), rank)


def _rank_state(ring: StatefulRing, learner: Learner, step: int) -> dict[str, Any]:
    return {
        "of": {"step": step, "rank": ring.rank},
        "ring": dict(ring.state_dict()),
        "chance": rng_state(),
        "buffers": learner.buffers(),
        "extra": {name: part.get_extra_state() for name, part in parts_with_extra_state(learner.model)},
        "machine": machine(),
    }


def parts_with_extra_state(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that have more to keep than parameters and buffers, which each rank has of its own."""
    return (each for each in model.named_modules() if type(each[1]).get_extra_state is not nn.Module.get_extra_state)


def machine() -> dict[str, str]:
    """All that decides the bits of this rank's own arithmetic, beside its settings."""
    return {"torch": str(torch.__version__), "processor": torch.backends.cpu.get_cpu_capability()}


def _shared_state(settings: Mapping[str, Any], learner: Learner, position: Position) -> dict[str, Any]:
    return {
        "of": {"step": position.step},
        "terms": settings,
        "position": asdict(position),
        "model": learner.model.state_dict(),
        "optimizer": learner.optimizer.state(),
    }


# -- files

STEP_FILE = r"step-(\d+)\.pt"


def model_path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09}.pt"


def rank_path(directory: Path, step: int, rank: int) -> Path:
    return directory / f"step-{step:09}.rank-{rank}.pt"


def chosen_step(resume: Path) -> int:
    """Step of the checkpoint to resume from: the one that is named, or the last complete one of the directory."""
    if named := _named_step(resume):
        return named
    steps = complete_steps(checkpoints_in(resume))
    if not steps:
        raise ConfigError(
            f"{resume}: no complete checkpoint to resume from (step-N.pt, here or in 'checkpoints'); runs write"
            " them if checkpoint.every_steps is set"
        )
    return steps[-1]


def complete_steps(directory: Path) -> list[int]:
    return sorted(int(found[1]) for found in _named(directory, STEP_FILE))


def checkpoints_in(resume: Path) -> Path:
    """Directory of checkpoints: of a run, itself, or the one that a named checkpoint is in."""
    if _named_step(resume):
        return resume.parent
    below = resume / "checkpoints"
    return below if below.is_dir() else resume


def _named_step(resume: Path) -> int | None:
    found = re.fullmatch(STEP_FILE, resume.name)
    return int(found[1]) if found else None


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


def write(path: Path, state: dict[str, Any]) -> str:
    """Write the file atomically: it has another name until it is on disk. Returns the digest of its content."""
    unfinished = path.with_suffix(".unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = content_digest(state)
        with unfinished.open("wb") as file:
            torch.save({"format": FORMAT, "digest": digest, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        return digest
    except (OSError, RuntimeError, TypeError) as error:
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
    """Content of a file, if it is what was written."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path}: the checkpoint cannot be read: {error.strerror}") from error
    with file:
        try:
            state: dict[str, Any] = torch.load(file, weights_only=True)
        except Exception as error:  # torch raises many kinds for a truncated or foreign file
            raise ConfigError(f"{path}: not a complete checkpoint file ({type(error).__name__})") from error
    if not isinstance(state, dict) or state.pop("format", None) != FORMAT:
        raise ConfigError(f"{path}: not a checkpoint of format {FORMAT}")
    try:
        digest = content_digest({key: value for key, value in state.items() if key != "digest"})
    except TypeError:
        digest = ""  # we do not write such things
    if state.get("digest") != digest:
        raise ConfigError(f"{path}: the checkpoint is damaged: its content is not what was written")
    return state


# As they are, without what was derived from them: a number of numpy is a float, too.
PLAIN = {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device}


def content_digest(content: Any) -> str:
    """SHA-256 of all that a file says, down to the bits of its tensors. Torch reads damaged files without a word."""
    digest = hashlib.sha256()
    _feed(digest, content)
    return digest.hexdigest()


def _feed(digest: "hashlib._Hash", content: Any) -> None:
    """Enter a value, with its kind and length, so that different contents are never the same bytes."""
    match content:
        case Tensor():
            dense = content if content.layout is torch.strided else content.to_dense()
            digest.update(f"tensor {dense.dtype} {tuple(dense.shape)}\n".encode())
            digest.update(memory_of(dense))
        case dict():
            digest.update(f"mapping {len(content)}\n".encode())
            for key, value in content.items():
                _feed(digest, key)
                _feed(digest, value)
        case list() | tuple():
            digest.update(f"sequence {len(content)}\n".encode())
            for value in content:
                _feed(digest, value)
        case set() | frozenset():  # in any order
            digest.update(f"set {' '.join(sorted(map(content_digest, content)))}\n".encode())
        case _ if type(content) in PLAIN:
            text = repr(content).encode(errors="surrogatepass")
            digest.update(f"{type(content).__name__} {len(text)}\n".encode() + text)
        case _:
            raise TypeError(
                f"it would hold a {type(content).__name__}, which cannot be read back without running code of the file;"
                " let get_extra_state() return tensors, numbers, text, and lists or dictionaries of them"
            )


# -- lock


class DirectoryLock:
    """Lock on a rank's files in a directory, held by this process as long as it lives.

    It is an flock: the kernel drops it when the process ends, however it ends, so a lock is never left behind. Linux
    carries it over NFS as well, where the server takes part in locking. A file system without locks is used without
    one, and a warning says so.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: tuple[int, Path] | None = None

    def take(self, rank: int) -> None:
        """Take the lock, or raise with the name of its holder."""
        path = self._directory / f"rank-{rank}.lock"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = _opened_and_locked(path)
            os.truncate(file, 0)
            os.write(file, _ourselves().encode())
        except OSError as error:
            raise ConfigError(f"{path}: the checkpoint cannot be written: {error.strerror}") from error
        self._held = file, path

    def release(self) -> None:
        if self._held is not None:
            file, path = self._held
            self._held = None
            path.unlink(missing_ok=True)  # while it is ours: nobody else can have it
            os.close(file)


def _opened_and_locked(path: Path) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                logger.warning("%s: not locked against other runs: %s", path.parent, error.strerror)
                return file
            holder = os.read(file, 1000).decode(errors="replace") or "a process that has just begun"
            os.close(file)
            raise ConfigError(
                f"checkpoint.directory: {path.parent}: another run writes its checkpoints there: {holder}; wait for its"
                " end, or name another directory"
            ) from None
        if _is_still(file, path):
            return file
        os.close(file)  # its last holder has removed it after we opened it


def _is_still(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _ourselves() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M:%S}"


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
