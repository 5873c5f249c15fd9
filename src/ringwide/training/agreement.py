"""All ranks must learn from the same data in the same way: whoever differs is named before the first step."""

import hashlib
from typing import Any, Protocol

import torch

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.data.samples import Data


class Gathers(Protocol):
    @property
    def rank(self) -> int: ...
    async def all_gather(self, tensor: Any) -> list[Any]: ...


async def agree(ring: Gathers, config: TrainingConfig, data: Data) -> None:
    settings = hashlib.sha256(config.model_dump_json().encode()).digest()
    ours = torch.frombuffer(bytearray(settings + data.fingerprint()), dtype=torch.uint8)
    everyone = [bytes(theirs.tolist()) for theirs in await ring.all_gather(ours)]
    _require_equal(ring.rank, [given[: len(settings)] for given in everyone], "settings under 'training'")
    what = f"data {config.data!r}"
    _require_equal(ring.rank, [given[len(settings) :] for given in everyone], what)


def _require_equal(rank: int, given: list[bytes], what: str) -> None:
    others = [other for other, theirs in enumerate(given) if theirs != given[0]]
    if others:
        named = ", ".join(map(str, others))
        raise ConfigError(
            f"training: rank {named} has other {what} than rank 0 (this is rank {rank}); give every node the same"
            " experiment file, the same files to read and the same version of Python"
        )
