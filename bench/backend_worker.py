"""One rank of the backend benchmark: gloo and ringwide as two groups of the same processes, taking turns.

In each round every backend does the same few calls or steps; whoever is first changes from round to round.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ringwide
from ringwide.torch import RingState, allreduce_hook

Step = Callable[[], None]
HOOK = "hook int8"


class _OnesForGradients(torch.autograd.Function):
    """A sum of everything, whose gradients are all there already."""

    @staticmethod
    def forward(context: Any, ones: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        context.gradients = [ones] * len(parts)
        return parts[0].sum()

    @staticmethod
    def backward(context: Any, *_: torch.Tensor) -> Any:
        return None, *context.gradients


class Parameters(torch.nn.Module):
    """Many small parameters, and next to nothing to compute with them: what is left is DDP and its communication."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList([torch.randn(width) for _ in range(count)])

    def forward(self, ones: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = _OnesForGradients.apply(ones, *self.parts)  # type: ignore[no-untyped-call]
        return total


def make_model(what: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """With its input. The large one has four times 6.25 MB, and one sample to learn from."""
    if what == "small":
        return Parameters(200, 64), torch.ones(64)
    return torch.nn.Sequential(*[torch.nn.Linear(1250, 1250, bias=False) for _ in range(4)]), torch.randn(1, 1250)


def make_step(case: dict[str, Any], backend: str, groups: dict[str, dist.ProcessGroup]) -> Step:
    if case["what"] == "all_reduce":
        return _all_reduce_step(case["bytes"], groups[backend])
    torch.manual_seed(0)
    model, given = make_model(case["what"])
    group = groups["gloo" if backend == HOOK else backend]
    ddp = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    if backend == HOOK:
        config = ringwide.RingConfig(codec="int8", allow_lossy=True, codec_threads=0)  # hosts share these cores
        ddp.register_comm_hook(RingState(config), allreduce_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        ddp(given).square().mean().backward()
        optimizer.step()

    return step


def _all_reduce_step(nbytes: int, group: dist.ProcessGroup) -> Step:
    tensor = torch.ones(nbytes // 4)

    def step() -> None:
        tensor.fill_(1)
        dist.all_reduce(tensor, group=group)

    return step


def measure(case: dict[str, Any], task: dict[str, Any], groups: dict[str, dist.ProcessGroup]) -> dict[str, list[float]]:
    backends = task["backends"]
    steps = {backend: make_step(case, backend, groups) for backend in backends}
    turns: dict[str, list[float]] = {backend: [] for backend in backends}
    for number in range(task["rounds"] + 2):
        first = number % len(backends)
        for backend in backends[first:] + backends[:first]:
            taken = turn(steps[backend], case["calls"])
            if number > 1:  # DDP sorts its buckets after its first step
                turns[backend].append(taken)
    return turns


def turn(step: Step, calls: int) -> float:
    """Seconds of one call, from a moment at which all ranks are ready."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - began) / calls


def main(task: dict[str, Any]) -> None:
    store = f"tcp://{task['store']}"
    dist.init_process_group("gloo", init_method=store, rank=task["rank"], world_size=len(task["peers"]))
    groups = {backend: dist.new_group(backend=backend) for backend in task["backends"] if backend != HOOK}
    played = [measure(case, task, groups) for case in task["cases"]]
    dist.destroy_process_group()
    print(json.dumps(played))


if __name__ == "__main__":
    torch.set_num_threads(1)  # many ranks on one machine
    os.environ["RINGWIDE_INSECURE"] = "1"  # hosts are namespaces, which nobody else can reach
    main(json.load(sys.stdin))
