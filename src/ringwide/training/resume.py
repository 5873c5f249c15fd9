"""Resuming from a checkpoint: its state is restored, if it is intact and this run has the same settings."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ringwide.compression.codecs.registry import LOSSY
from ringwide.errors import ConfigError
from ringwide.tensors.arithmetic import sum_itemsize
from ringwide.training.agreement import together
from ringwide.training.checkpoint import (
    StatefulRing,
    checkpoints_in,
    chosen_step,
    complete_steps,
    machine,
    model_path,
    parts_with_extra_state,
    rank_path,
    read,
    restore_rng,
)
from ringwide.training.config import TrainingConfig
from ringwide.training.learner import Learner
from ringwide.training.optimizers import FlatBucket
from ringwide.training.samples import Position
from ringwide.training.user_code import guarded

logger = logging.getLogger("ringwide.training")
MOST_ALTERNATIVES = 16
DIGEST_BYTES = 32
State = dict[str, Any]


async def restore(
    ring: StatefulRing, resume: Path, settings: "ResumeSettings", learner: Learner, *, last_step: int | None
) -> Position:
    """Restore the state of the checkpoint that `resume` names, and return its position.

    Whatever is wrong on one rank is raised on all.
    """
    directory = checkpoints_in(resume)
    step = await together(ring, lambda: chosen_step(resume) if ring.rank == 0 else 0)
    step = int((await ring.broadcast(torch.tensor([step])))[0])
    shared, ours = await _intact(ring, directory, step)
    await together(ring, lambda: _load_shared(shared, settings, learner, model_path(directory, step)))
    position = Position(*(await ring.broadcast(torch.tensor(_position_in(shared)))).tolist())
    if last_step is not None and step >= last_step:
        raise ConfigError(
            f"{directory}: the checkpoint is of step {step}, and this run would end after step {last_step}: nothing is"
            " left to train; let it end later, with training.steps or training.epochs"
        )
    await ring.broadcast([*learner.tensors(), *learner.optimizer.state().values()])
    _warn_of_other_bits(settings, ours, rank_path(directory, step, ring.rank), ring.rank)
    ring.load_state_dict(ours["ring"])
    restore_rng(ours["chance"])
    for buffer, kept in zip(learner.buffers(), ours["buffers"], strict=True):
        buffer.copy_(kept)
    for name, part in parts_with_extra_state(learner.model):
        where = f"{rank_path(directory, step, ring.rank)}: extra state of {name or 'the model'}"
        guarded(part.set_extra_state, where)(ours["extra"][name])
    return position


# -- files of one checkpoint


async def _intact(ring: StatefulRing, directory: Path, step: int) -> tuple[State | None, State]:
    """State of all ranks, which only rank 0 has, and state of this rank, if all files are there and belong together.

    If not, the error says which checkpoint can be used instead.
    """
    try:
        shared = await _read_shared(ring, directory, step)
    except ConfigError as error:
        raise ConfigError(f"{error}; {await _instead(ring, directory, step)}") from error
    await together(ring, lambda: _require_same_nodes(shared, ring.size, model_path(directory, step)))
    try:
        return shared, await _read_ours(ring, directory, step, shared)
    except ConfigError as error:
        raise ConfigError(f"{error}; {await _instead(ring, directory, step)}") from error


async def _read_shared(ring: StatefulRing, directory: Path, step: int) -> State | None:
    path = model_path(directory, step)
    return await together(ring, lambda: _read(path, step=step) if ring.rank == 0 else None)


async def _read_ours(ring: StatefulRing, directory: Path, step: int, shared: State | None) -> State:
    path = rank_path(directory, step, ring.rank)
    ours = await together(ring, lambda: _read(path, step=step, rank=ring.rank))
    await _require_one_checkpoint(ring, shared, ours, path)
    return ours


def _read(path: Path, **named: int) -> State:
    """Content of a file that is of the step and the rank in its name."""
    state = read(path)
    if state["of"] != named:
        was = ", ".join(f"{what} {number}" for what, number in state["of"].items())
        raise ConfigError(f"{path}: the file is that of {was}, under another name; put the right one there")
    return state


def _require_same_nodes(shared: State | None, size: int, path: Path) -> None:
    """Check this before ranks look for files of theirs, of which more nodes than then have none."""
    if shared is not None and (nodes := shared["terms"]["nodes"]) != size:
        raise ConfigError(f"{path}: written by {nodes} nodes, this run has {size}; use the same number")


async def _require_one_checkpoint(ring: StatefulRing, shared: State | None, ours: State, path: Path) -> None:
    """Check that the files of all ranks were written together: disks need not be shared, and steps have equal names."""
    parts = shared["parts"] if shared and len(shared["parts"]) == ring.size else [bytes(DIGEST_BYTES).hex()] * ring.size
    written = torch.frombuffer(bytearray(b"".join(map(bytes.fromhex, parts))), dtype=torch.uint8)
    written = (await ring.broadcast(written)).numpy().tobytes()

    def check() -> None:
        if written[DIGEST_BYTES * ring.rank :][:DIGEST_BYTES].hex() != ours["digest"]:
            raise ConfigError(f"{path}: the file is of another run than the model of rank 0; put the right one there")

    await together(ring, check)


async def _instead(ring: StatefulRing, directory: Path, step: int) -> str:
    """Advice what to resume from, where the checkpoint of `step` cannot be used."""
    others = torch.zeros(MOST_ALTERNATIVES, dtype=torch.int64)
    if ring.rank == 0:
        found = [other for other in complete_steps(directory) if other != step][-MOST_ALTERNATIVES:]
        others[: len(found)] = torch.tensor(found[::-1])
    await ring.broadcast(others)
    for other in filter(None, others.tolist()):
        try:
            await _read_ours(ring, directory, other, await _read_shared(ring, directory, other))
        except ConfigError:
            continue
        return f"that of step {other} is intact on all ranks: choose it with --resume {model_path(directory, other)}"
    return "there is no other checkpoint that all ranks can read: start again"


# -- what is restored


def _load_shared(state: State | None, settings: "ResumeSettings", learner: Learner, path: Path) -> None:
    """Load the state of all ranks, on the one that has it."""
    if state is None:
        return
    require_same_settings(ResumeSettings(**state["terms"]), settings, path)
    require_equal_models(state["model"], learner.model.state_dict(), path)
    require_same_sums(ResumeSettings(**state["terms"]), settings, path)
    learner.model.load_state_dict(state["model"])
    for name, tensor in learner.optimizer.state().items():
        tensor.copy_(state["optimizer"][name])


def _position_in(shared: State | None) -> list[int]:
    position = shared["position"] if shared else asdict(Position())
    return [position["step"], position["epoch"], position["step_in_epoch"]]


def _warn_of_other_bits(settings: "ResumeSettings", ours: State, path: Path, rank: int) -> None:
    """Warn where the run goes on, but not to the bits it would have had."""
    then, now = ours["machine"], machine()
    if then != now:
        logger.warning("%s: written with %s, this run has %s: the last bits may differ", path, then, now)
    ring = settings.ring
    measured = ring.get("codec") == "auto" or (ring.get("codec") in LOSSY and ring.get("threshold_bytes") == "auto")
    if rank == 0 and measured and ring.get("allow_lossy"):
        logger.warning(
            "ring.codec: %s, threshold_bytes: %s: what is encoded with a loss follows from measured times, so no two"
            " runs have the same bits, nor has this one those of the run it resumes",
            ring["codec"],
            ring.get("threshold_bytes"),
        )


# -- settings

# These may differ, as they change when a run ends or what it evaluates, but not what it computes. The end of the decay
# is compared as the step that follows from it (`decay_end`).
MAY_CHANGE = {"steps", "epochs", "seconds", "evaluate_every_steps", "check_every_steps", "overlap", "decay_steps"}


@dataclass(frozen=True, slots=True)
class ResumeSettings:
    """Settings that decide the bits of a run. They may not change when it resumes from a checkpoint."""

    nodes: int
    training: Mapping[str, Any]
    ring: Mapping[str, Any]  # its settings that decide bits
    decay_end: int | None  # step at which the learning rate has decayed; None: it does not decay
    data: str  # its fingerprint
    sums: Mapping[str, tuple[str, int]]  # algorithm and size of each bucket: the order in which ranks are added up


def resume_settings(
    config: TrainingConfig,
    ring: StatefulRing,
    buckets: Sequence[FlatBucket],
    *,
    ring_settings: Mapping[str, Any],
    last_step: int | None,
    data: bytes,
) -> ResumeSettings:
    falls = config.schedule != "constant"
    added_up = {each.name: _bytes_added_up(each, ring_settings) for each in buckets if ring.size > 1}
    return ResumeSettings(
        nodes=ring.size,
        training=config.model_dump(mode="json", exclude=MAY_CHANGE),
        ring=dict(ring_settings),
        decay_end=(config.decay_steps or last_step) if falls else None,
        data=data.hex(),
        sums={name: (ring.algorithm_for(nbytes), nbytes) for name, nbytes in added_up.items()},
    )


def _bytes_added_up(bucket: FlatBucket, ring_settings: Mapping[str, Any]) -> int:
    """Bytes of a bucket as the ring adds it up, by which it chooses an algorithm: half precision may be widened."""
    dtype = str(bucket.gradients.dtype).removeprefix("torch.")
    return bucket.gradients.numel() * sum_itemsize(dtype, ring_settings.get("half_precision", "float32"))


def require_same_settings(then: ResumeSettings, now: ResumeSettings, path: object) -> None:
    """Compare the settings of a checkpoint with those of this run. `path` names the checkpoint."""
    _require_equal_block("training", then.training, now.training, path)
    _require_equal_block("ring", _but_sums(then.ring), _but_sums(now.ring), path)
    if then.decay_end != now.decay_end:
        raise ConfigError(
            f"{path}: written with a learning rate that decays until step {then.decay_end}, in this run it would decay"
            f" until step {now.decay_end}; set training.decay_steps: {then.decay_end}"
        )
    if then.data != now.data:
        raise ConfigError(
            f"{path}: written with other data than training.data: {now.training['data']!r} gives now"
            f" (fingerprints {then.data[:16]} and {now.data[:16]}); give it the same, or start again without --resume"
        )


# Compared by what follows from them: with `auto`, that is not the same everywhere.
DECIDE_SUMS = {"algorithm", "tree_bytes"}


def _but_sums(ring: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in ring.items() if key not in DECIDE_SUMS}


def require_same_sums(then: ResumeSettings, now: ResumeSettings, path: object) -> None:
    """Compare how each bucket of the same model is added up. The error has the setting that makes it the same."""
    for name, (algorithm, nbytes) in now.sums.items():
        before, _ = then.sums[name]
        if before != algorithm:
            if then.ring.get("algorithm") != now.ring.get("algorithm"):
                _require_equal_block("ring", then.ring, now.ring, path)
            most = max((size for by, size in then.sums.values() if by == "tree"), default=0)
            raise ConfigError(
                f"{path}: written by a ring that added up bucket {name!r} ({nbytes} bytes) by the {before}; this one"
                f" would by the {algorithm}, in another order and so to other bits: that follows from where the nodes"
                " are (ring.same_host, hosts) and how many cores they have; to go on as it began, set"
                f" ring.tree_bytes: {most}, as with --set ring.tree_bytes={most}"
            )


def _require_equal_block(block: str, then: Mapping[str, Any], now: Mapping[str, Any], path: object) -> None:
    for key in sorted(then.keys() | now.keys()):
        if then.get(key) != now.get(key):
            raise ConfigError(
                f"{path}: written with {block}.{key}: {then.get(key)!r}, this run has {now.get(key)!r}; use the same"
            )


EXTRA_STATE = "_extra_state"  # torch's name for it, after that of the module


def require_equal_models(then: Mapping[str, Any], now: Mapping[str, Any], path: object) -> None:
    """Compare the models before torch loads one into the other, which would report all differences on many lines."""
    for name in [*now, *then]:
        was, is_now = _described(then.get(name)), _described(now.get(name))
        varies = name in then and name in now and name.endswith(EXTRA_STATE)
        if was != is_now and not varies:
            raise ConfigError(
                f"{path}: written with another model: {name!r} was {was} then, and is {is_now} in this run;"
                " use the same model"
            )


def _described(value: Any) -> str:
    if value is None:
        return "not there"
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
