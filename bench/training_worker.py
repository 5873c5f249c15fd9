"""One rank of the training benchmark: the same loop over ringwide and over gloo, taking turns in one process."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import uvloop

import ringwide
from ringwide.training.config import TrainingConfig
from ringwide.training.loop import TrainingRing, train
from ringwide.training.progress import Result

OPS = {"mean": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class NoStatistics:
    bytes_received, codec_seconds = 0, 0.0
    links = ()


class GlooRing:
    """torch.distributed with gloo, as the training loop asks for it."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    async def allreduce(self, tensors: Any, op: str = "mean", *, bucket: str = "") -> Any:
        dist.all_reduce(tensors, OPS[op])
        return tensors.div_(self.size) if op == "mean" else tensors

    async def broadcast(self, tensors: Any, root: int = 0) -> Any:
        for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
            dist.broadcast(tensor, root)
        return tensors

    async def all_gather(self, tensor: Any) -> list[Any]:
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(gathered, tensor)
        return gathered

    async def barrier(self) -> None:
        dist.barrier()

    def statistics(self) -> NoStatistics:
        return NoStatistics()

    def algorithm_for(self, nbytes: int) -> str:
        return "gloo"

    def state_dict(self) -> Mapping[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


async def turn(ring: TrainingRing, config: TrainingConfig) -> dict[str, float]:
    """What all ranks did together."""
    result = await train(ring, config, lambda _: None)
    everyone = await ring.all_gather(torch.tensor(_figures(result), dtype=torch.float64))
    batches, losses, accuracies = zip(*(theirs.tolist() for theirs in everyone), strict=True)
    return {"batches": sum(batches), "loss": sum(losses) / len(losses), "test_accuracy": accuracies[0]}


def _figures(result: Result) -> list[float]:
    return [result.batches, result.loss, result.test_accuracy or 0.0]


async def main(task: dict[str, Any]) -> None:
    config = TrainingConfig(**task["training"])
    turns: dict[str, list[dict[str, float]]] = {"ringwide": [], "gloo": []}
    settings = ringwide.RingConfig(**task["ring"])
    async with ringwide.join(rank=task["rank"], peers=task["peers"], config=settings) as ring:
        for _ in range(task["rounds"]):
            turns["ringwide"].append(await turn(ring, config))
            turns["gloo"].append(await turn(GlooRing(), config))
            await ring.barrier()
            if ring.rank == 0:
                print(*(f"{name} {found[-1]['batches']:,.0f}" for name, found in turns.items()), file=sys.stderr)
    print(json.dumps(turns))


if __name__ == "__main__":
    task = json.load(sys.stdin)
    store, size = f"tcp://{task['store']}", len(task["peers"])
    dist.init_process_group("gloo", init_method=store, rank=task["rank"], world_size=size)
    uvloop.run(main(task))
    dist.destroy_process_group()
