"""Checks before the first step: a resumed run has the settings of its checkpoint, and all ranks have the same data."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.samples import Data

# These may differ, as they change when a run ends or what it evaluates, but not what it computes. The end of the decay
# is compared as the step that follows from it (`decay_end`).
MAY_CHANGE = {"steps", "epochs", "seconds", "evaluate_every_steps", "overlap", "decay_steps"}


@dataclass(frozen=True, slots=True)
class ResumeSettings:
    """Settings that decide the bits of a run. They may not change when it resumes from a checkpoint."""

    nodes: int
    training: Mapping[str, Any]
    ring: Mapping[str, Any]  # its settings that decide bits
    decay_end: int | None  # step at which the learning rate has decayed; None: it does not decay
    data: str  # its fingerprint

    def as_state(self) -> dict[str, Any]:
        return asdict(self)


def resume_settings(
    config: TrainingConfig, *, nodes: int, ring: Mapping[str, Any], last_step: int | None, data: bytes
) -> ResumeSettings:
    falls = config.schedule != "constant"
    return ResumeSettings(
        nodes=nodes,
        training=config.model_dump(mode="json", exclude=MAY_CHANGE),
        ring=dict(ring),
        decay_end=(config.decay_steps or last_step) if falls else None,
        data=data.hex(),
    )


def require_same_settings(then: ResumeSettings, now: ResumeSettings, path: object) -> None:
    """Compare the settings of a checkpoint with those of this run. `path` names the checkpoint."""
    if then.nodes != now.nodes:
        raise ConfigError(f"{path}: written by {then.nodes} nodes, this run has {now.nodes}; use the same number")
    _require_equal_block("training", then.training, now.training, path)
    _require_equal_block("ring", then.ring, now.ring, path)
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


def _require_equal_block(block: str, then: Mapping[str, Any], now: Mapping[str, Any], path: object) -> None:
    for key in sorted(then.keys() | now.keys()):
        if then.get(key) != now.get(key):
            raise ConfigError(
                f"{path}: written with {block}.{key}: {then.get(key)!r}, this run has {now.get(key)!r}; use the same"
            )


def require_equal_models(then: Mapping[str, Any], now: Mapping[str, Any], path: object) -> None:
    """Compare the models before torch loads one into the other, which would report all differences on many lines."""
    for name in [*now, *then]:
        was, is_now = _described(then.get(name)), _described(now.get(name))
        if was != is_now:
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


# -- agreement between ranks

DIGEST_BYTES = 32


class Gathers(Protocol):
    @property
    def rank(self) -> int: ...
    async def all_gather(self, tensor: Any) -> list[Any]: ...


async def agree(
    ring: Gathers, config: TrainingConfig, data: Data, *, saves_every: int | None = None, resumes: bool = False
) -> bytes:
    """Check that all ranks have the same settings and data. Returns the data's fingerprint, which is slow to make."""
    fingerprint = data.fingerprint()
    ours = {
        "settings under 'training'": _digest(config.model_dump(mode="json")),
        "'checkpoint.every_steps'": _digest(saves_every),
        "use of --resume": _digest(resumes),
        f"data {config.data!r}": fingerprint,
    }
    sent = torch.frombuffer(bytearray(b"".join(ours.values())), dtype=torch.uint8)
    everyone = [bytes(theirs.tolist()) for theirs in await ring.all_gather(sent)]
    for index, what in enumerate(ours):
        part = slice(index * DIGEST_BYTES, (index + 1) * DIGEST_BYTES)
        _require_equal(ring.rank, [given[part] for given in everyone], what)
    return fingerprint


def _digest(value: Any) -> bytes:
    """Digest of a value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


def _require_equal(rank: int, given: list[bytes], what: str) -> None:
    differing = [other for other, theirs in enumerate(given) if theirs != given[0]]
    if differing:
        named = ", ".join(map(str, differing))
        raise ConfigError(
            f"training: rank {named} has other {what} than rank 0 (this is rank {rank}); give every node the same"
            " experiment file and command line, the same files to read and the same version of Python"
        )
