"""Training: n ranks with DDP, FSDP2 or ZeRO learn what one process with the whole batch learns."""

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from tests.torch_backend.world import Family, World, same
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ringwide import RingConfig
from ringwide.torch import RingState, allreduce_hook

FAMILY = Family("training")
case = FAMILY.case

STEPS = 20
ROWS = 4  # of every rank, in every step
TINY_BUCKET_MB = 0.001  # so that every layer has a bucket of its own


class Sometimes(nn.Module):
    """A model one of whose parts is used in every other step only, so that some gradients never come."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.uses = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.uses += 1
        hidden = torch.relu(self.always(rows))
        out: torch.Tensor = self.last(self.sometimes(hidden) if self.uses % 2 else hidden)
        return out


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(7)
    return make()


def _batches(world: World, count: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    chance = torch.Generator().manual_seed(11)
    for _ in range(count):
        yield (
            torch.randn(world.size * ROWS, 8, generator=chance),
            torch.randn(world.size * ROWS, 4, generator=chance),
        )


def _share(world: World, rows: torch.Tensor) -> torch.Tensor:
    return rows[world.rank * ROWS : (world.rank + 1) * ROWS]


def _loss(model: nn.Module, rows: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(rows), goals)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _train_alone(world: World, model: nn.Module, make: Callable[[nn.Module], torch.optim.Optimizer] = _sgd) -> None:
    optimizer = make(model)
    for rows, goals in _batches(world):
        optimizer.zero_grad()
        _loss(model, rows, goals).backward()
        optimizer.step()


def _train_together(world: World, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for rows, goals in _batches(world):
        optimizer.zero_grad()
        _loss(model, _share(world, rows), _share(world, goals)).backward()
        optimizer.step()


def _same_bits_everywhere(model: nn.Module) -> None:
    for name, tensor in model.state_dict().items():
        bits = tensor.detach().reshape(-1).view(torch.int32)
        of_rank_0 = bits.clone()
        dist.broadcast(of_rank_0, 0)
        same(bits, of_rank_0, name)


def _equal(model: nn.Module, alone: nn.Module, tolerance: float = 1e-6) -> None:
    for (name, ours), theirs in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(
            ours.detach(),
            theirs.detach(),
            rtol=tolerance,
            atol=tolerance,
            msg=partial("{}: {}".format, name),
        )


def _ddp_equals_alone(
    world: World, make: Callable[[], nn.Module] = _mlp, *, bucket_cap_mb: float | None = None, **options: bool
) -> None:
    alone = _made(make)
    model = DistributedDataParallel(copy.deepcopy(alone), bucket_cap_mb=bucket_cap_mb, **options)  # type: ignore[arg-type]
    _train_alone(world, alone)
    _train_together(world, model, _sgd(model))
    _same_bits_everywhere(model)
    _equal(model.module, alone)


@case
def ddp(world: World) -> None:
    _ddp_equals_alone(world)


class Words(nn.Module):
    """A model whose first gradient is sparse. Every rank uses other rows, and some twice."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.last = nn.EmbeddingBag(40, 16, mode="mean", sparse=True), nn.Linear(16, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.rows((rows * 10).long().abs() % 40))
        return out


def _plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)  # sparse gradients have no momentum


@case
def ddp_with_sparse_gradients(world: World) -> None:
    alone = _made(Words)
    model = DistributedDataParallel(copy.deepcopy(alone))
    _train_alone(world, alone, _plain_sgd)
    _train_together(world, model, _plain_sgd(model))
    _same_bits_everywhere(model)
    _equal(model.module, alone)


@case
def ddp_with_sparse_gradients_and_our_hook(world: World) -> None:
    alone = _made(Words)
    model = DistributedDataParallel(copy.deepcopy(alone))
    _train_alone(world, alone, _plain_sgd)
    with RingState(RingConfig()) as state:
        model.register_comm_hook(state, allreduce_hook)
        _train_together(world, model, _plain_sgd(model))
    _same_bits_everywhere(model)
    _equal(model.module, alone)


@case
def ddp_with_many_buckets(world: World) -> None:
    _ddp_equals_alone(world, bucket_cap_mb=TINY_BUCKET_MB)


@case
def ddp_with_buckets_as_views_and_a_static_graph(world: World) -> None:
    _ddp_equals_alone(world, bucket_cap_mb=TINY_BUCKET_MB, gradient_as_bucket_view=True, static_graph=True)


@case
def ddp_with_unused_parameters(world: World) -> None:
    _ddp_equals_alone(world, Sometimes, find_unused_parameters=True)


@case
def ddp_begins_with_the_parameters_of_rank_0(world: World) -> None:
    torch.manual_seed(world.rank)
    model = DistributedDataParallel(_mlp())
    _same_bits_everywhere(model)
    torch.manual_seed(0)
    _equal(model.module, _mlp(), tolerance=0)


@case
def ddp_accumulates_without_talking(world: World) -> None:
    alone = _made(_mlp)
    model = DistributedDataParallel(copy.deepcopy(alone))
    optimizer = _sgd(model)
    for number, (rows, goals) in enumerate(_batches(world)):
        last = number % 4 == 3
        with nullcontext() if last else model.no_sync():
            _loss(model, _share(world, rows), _share(world, goals)).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    own = _sgd(alone)
    for number, (rows, goals) in enumerate(_batches(world)):
        _loss(alone, rows, goals).backward()
        if number % 4 == 3:
            own.step()
            own.zero_grad()
    _same_bits_everywhere(model)
    _equal(model.module, alone)


def _with_hook(world: World, state: object, hook: Callable[..., object], tolerance: float) -> None:
    alone = _made(_mlp)
    model = DistributedDataParallel(copy.deepcopy(alone), bucket_cap_mb=TINY_BUCKET_MB)
    model.register_comm_hook(state, hook)
    _train_alone(world, alone)
    _train_together(world, model, _sgd(model))
    _same_bits_everywhere(model)
    _equal(model.module, alone, tolerance)


@case
def ddp_with_the_all_reduce_hook(world: World) -> None:
    _with_hook(world, None, default_hooks.allreduce_hook, tolerance=1e-6)


@case
def ddp_with_the_fp16_hook(world: World) -> None:
    _with_hook(world, None, default_hooks.fp16_compress_hook, tolerance=5e-3)


@case
def ddp_with_the_bf16_hook(world: World) -> None:
    def by_another_name(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return default_hooks.bf16_compress_hook(state, bucket)  # type: ignore[arg-type]

    _with_hook(world, None, by_another_name, tolerance=5e-2)  # DDP knows its name, and allows it with CUDA only


@case
def ddp_with_the_hook_of_ringwide(world: World) -> None:
    """Over a ring of its own, whatever backend the group has."""
    with RingState() as state:
        _with_hook(world, state, allreduce_hook, tolerance=1e-6)
        dist.barrier()  # nobody leaves the ring before all are through


@case
def ddp_with_the_hook_of_ringwide_and_a_codec(world: World) -> None:
    config = RingConfig(codec="bf16", allow_lossy=True, error_feedback=True, threshold_bytes=0)
    with RingState(config) as state:
        _with_hook(world, state, allreduce_hook, tolerance=5e-2)
        dist.barrier()


@case
def ddp_with_power_sgd(world: World) -> None:
    """Lossy, so it learns something else than one process; but all ranks learn the same, and do learn."""
    model = DistributedDataParallel(_made(_mlp))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = _sgd(model)
    ((rows, goals),) = _batches(world, count=1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = _loss(model, _share(world, rows), _share(world, goals))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    _same_bits_everywhere(model)
    assert losses[-1] < losses[0] / 2, losses


@case
def ddp_shares_the_buffers_of_rank_0(world: World) -> None:
    """The running mean of a batch norm is rank 0's, after the forward pass that follows."""
    model = DistributedDataParallel(_made(lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))))
    _train_together(world, model, _sgd(model))
    assert not model.module[1].running_mean.eq(0).any()
    model.eval()
    model.train()
    model.require_forward_param_sync = True
    model._sync_buffers()
    buffers = {name: buffer.float() for name, buffer in model.module.named_buffers()}
    for name, buffer in buffers.items():
        of_rank_0 = buffer.clone()
        dist.broadcast(of_rank_0, 0)
        same(buffer, of_rank_0, name)
    for name, parameter in model.module.named_parameters():
        of_rank_0 = parameter.detach().clone()
        dist.broadcast(of_rank_0, 0)
        same(parameter.detach(), of_rank_0, name)


@case
def ddp_on_the_group_of_a_part(world: World) -> None:
    group, members = dist.new_group([0, world.size - 1]), (0, world.size - 1)
    if world.rank in members:
        part = World(0 if world.rank == 0 else 1, 2, world.backend)
        alone = _made(_mlp)
        model = DistributedDataParallel(copy.deepcopy(alone), process_group=group)
        _train_alone(part, alone)
        _train_together(part, model, _sgd(model))
        _equal(model.module, alone)
    dist.barrier()  # with gloo, a rank that destroys a group breaks the connections that another still uses
    if world.rank in members:
        dist.destroy_process_group(group)


@case
def two_ddp_models_at_the_same_time(world: World) -> None:
    models = [DistributedDataParallel(_made(_mlp)) for _ in range(2)]
    optimizers = [_sgd(model) for model in models]
    for rows, goals in _batches(world):
        losses = [_loss(model, _share(world, rows), _share(world, goals)) for model in models]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for first, second in zip(*(model.parameters() for model in models), strict=True):
        same(first.detach(), second.detach())


@case
def zero_redundancy_optimizer(world: World) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # its import warns, which is an error for pytest

    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.01)

    alone = _made(_mlp)
    model = DistributedDataParallel(copy.deepcopy(alone))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    _train_alone(world, alone, adam)
    _train_together(world, model, optimizer)
    _same_bits_everywhere(model)
    _equal(model.module, alone, tolerance=1e-5)
    optimizer.consolidate_state_dict(to=0)
    if world.rank == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(alone.parameters()))


@case
def fsdp2(world: World) -> None:
    alone = _made(_mlp)
    model = copy.deepcopy(alone)
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    _train_alone(world, alone)
    _train_together(world, model, _sgd(model))
    for (name, ours), theirs in zip(model.named_parameters(), alone.parameters(), strict=True):
        whole = ours.full_tensor().detach()  # type: ignore[attr-defined]
        torch.testing.assert_close(whole, theirs.detach(), rtol=1e-6, atol=1e-6, msg=partial("{}: {}".format, name))
