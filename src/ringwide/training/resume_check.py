"""What decides the bits that a run computes. It may not change when the run goes on from a checkpoint."""

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

# What may differ: when it ends and what it looks at on the way, not what it computes. Where the learning rate has
# fallen is compared as the step that it comes to.
MAY_CHANGE = {"steps", "epochs", "seconds", "evaluate_every_steps", "overlap", "decay_steps"}


@dataclass(frozen=True, slots=True)
class ResumeTerms:
    nodes: int
    training: Mapping[str, Any]
    ring: Mapping[str, Any]  # those of its settings that decide bits
    decay_end: int | None  # the step at which the learning rate has fallen; none: it does not fall
    data: str  # its fingerprint

    def as_state(self) -> dict[str, Any]:
        return asdict(self)


def terms_of(
    config: TrainingConfig, *, nodes: int, ring: Mapping[str, Any], last_step: int | None, data: bytes
) -> ResumeTerms:
    falls = config.schedule != "constant"
    return ResumeTerms(
        nodes=nodes,
        training=config.model_dump(mode="json", exclude=MAY_CHANGE),
        ring=dict(ring),
        decay_end=(config.decay_steps or last_step) if falls else None,
        data=data.hex(),
    )


def require_equal_terms(then: ResumeTerms, now: ResumeTerms, path: object) -> None:
    """`path`: the checkpoint, to name it."""
    if then.nodes != now.nodes:
        raise ConfigError(f"{path}: written by {then.nodes} nodes, this run has {now.nodes}; use as many")
    _require_equal_settings("training", then.training, now.training, path)
    _require_equal_settings("ring", then.ring, now.ring, path)
    if then.decay_end != now.decay_end:
        raise ConfigError(
            f"{path}: written with a learning rate that falls until step {then.decay_end}, in this run it would fall"
            f" until step {now.decay_end}; set training.decay_steps: {then.decay_end}"
        )
    if then.data != now.data:
        raise ConfigError(
            f"{path}: written with other data than training.data: {now.training['data']!r} gives now"
            f" (fingerprints {then.data[:16]} and {now.data[:16]}); give it the same, or start anew without --resume"
        )


def _require_equal_settings(block: str, then: Mapping[str, Any], now: Mapping[str, Any], path: object) -> None:
    for key in sorted(then.keys() | now.keys()):
        if then.get(key) != now.get(key):
            raise ConfigError(
                f"{path}: written with {block}.{key}: {then.get(key)!r}, this run has {now.get(key)!r}; use the same"
            )


def require_equal_models(then: Mapping[str, Any], now: Mapping[str, Any], path: object) -> None:
    """Before torch loads one into the other: it would name all differences, on many lines."""
    for name in [*now, *then]:
        was, is_now = _told(then.get(name)), _told(now.get(name))
        if was != is_now:
            raise ConfigError(
                f"{path}: written with another model: {name!r} was {was} then, and is {is_now} in this run;"
                " use the same model"
            )


def _told(value: Any) -> str:
    if value is None:
        return "not there"
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"


# All ranks must learn from the same data in the same way: whoever differs is named before the first step.

DIGEST_BYTES = 32


class Gathers(Protocol):
    @property
    def rank(self) -> int: ...
    async def all_gather(self, tensor: Any) -> list[Any]: ...


async def agree(
    ring: Gathers, config: TrainingConfig, data: Data, *, saves_every: int | None = None, resumes: bool = False
) -> bytes:
    """Returns the fingerprint of the data, which takes long to find for much of it."""
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
    """The same for the same value, in whatever order its keys were written."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


def _require_equal(rank: int, given: list[bytes], what: str) -> None:
    others = [other for other, theirs in enumerate(given) if theirs != given[0]]
    if others:
        named = ", ".join(map(str, others))
        raise ConfigError(
            f"training: rank {named} has other {what} than rank 0 (this is rank {rank}); give every node the same"
            " experiment file and command line, the same files to read and the same version of Python"
        )
