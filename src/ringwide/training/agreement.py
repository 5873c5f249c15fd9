"""All ranks must learn from the same data in the same way: whoever differs is named before the first step."""

import hashlib
import json
from typing import Any, Protocol

import torch

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.data.samples import Data

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
