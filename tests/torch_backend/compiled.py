"""Compiled training steps, played by a set of its own: to import the compiler takes long."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from tests.torch_backend.world import World
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Step = Callable[[torch.Tensor], None]
COMPILERS = ("eager", "aot_eager")  # these need no compiler of C++
STEPS = 3


def compile_training(world: World) -> dict[str, bool]:
    """DDP trains eagerly, compiled, and in a compiled step; and collectives are called in what is compiled."""
    eagerly = _trained(world, _step)
    saw = {}
    for compiler in COMPILERS:
        compiled = partial(torch.compile, backend=compiler)
        saw[f"{compiler}: model"] = torch.equal(_trained(world, partial(_step_of_compiled, compiled)), eagerly)
        saw[f"{compiler}: step"] = torch.equal(_trained(world, partial(_compiled_step, compiled)), eagerly)
        total = compiled(_collectives)(world.mine(3))
        saw[f"{compiler}: collectives"] = torch.equal(total, _collectives(world.mine(3)))
        torch.compiler.reset()
    return saw


def _collectives(tensor: torch.Tensor) -> torch.Tensor:
    doubled = tensor * 2
    dist.all_reduce(doubled)
    found = [torch.zeros_like(doubled) for _ in range(dist.get_world_size())]
    dist.all_gather(found, doubled + tensor)
    dist.barrier()
    return torch.stack([doubled, *found]).sum(dim=0)


def _trained(world: World, step_of: Callable[[nn.Module, torch.optim.Optimizer], Step]) -> torch.Tensor:
    torch.manual_seed(5)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4)))
    step = step_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    chance = torch.Generator().manual_seed(world.rank)
    for _ in range(STEPS):
        step(torch.randn(4, 8, generator=chance))
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(rows: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()

    return step


def _step_of_compiled(compiled: Callable[..., Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    return _step(compiled(model), optimizer)


def _compiled_step(compiled: Callable[..., Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    step: Step = compiled(_step(model, optimizer))
    return step
