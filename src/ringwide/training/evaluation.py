"""How all ranks together judge one model."""

import math
from typing import Any, Protocol

import torch

from ringwide.training.learner import Learner


class Ring(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    async def broadcast(self, tensors: Any, root: int = 0) -> Any: ...
    async def all_gather(self, tensor: Any) -> list[Any]: ...


async def evaluate(ring: Ring, learner: Learner) -> tuple[float, float | None]:
    """Loss and accuracy (none: there are no classes) on the held-out samples, the same on every rank: each looks at its
    share of them, and what they found is put together on all."""
    count = len(learner.data.test)
    buffers = learner.buffers()
    ours = [buffer.clone() for buffer in buffers]
    if buffers:  # all ranks judge the same model: that of rank 0, which is the one in checkpoints
        await ring.broadcast(buffers)
    found = learner.evaluate(range(ring.rank * count // ring.size, (ring.rank + 1) * count // ring.size))
    for buffer, before in zip(buffers, ours, strict=True):  # to look at the model does not change the training
        buffer.copy_(before)
    everyone = await ring.all_gather(torch.tensor(found, dtype=torch.float64))
    loss, right, judged = (math.fsum(column) for column in zip(*(part.tolist() for part in everyone), strict=True))
    return loss / max(count, 1), right / judged if judged else None
