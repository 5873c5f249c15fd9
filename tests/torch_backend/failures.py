"""Failures on purpose while DDP trains, each played by a set of its own. What an act returns is what its rank saw."""

import copy
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.torch_backend.world import World
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Saw = dict[str, Any]
STEPS = 10
ROWS = 4
FAILING_STEP = 3
LOOK_SECONDS = 0.05
LOOKS = 20


def lose_a_rank(world: World) -> Saw:
    """The last rank is killed in the middle of its backward pass."""
    return _survive(world, signal.SIGKILL)


def freeze_a_rank(world: World) -> Saw:
    """The last rank stops in the middle of its backward pass, with all its connections open."""
    return _survive(world, signal.SIGSTOP)


def _survive(world: World, number: signal.Signals) -> Saw:
    victim, store = world.size - 1, _store()
    model = DistributedDataParallel(nn.Linear(8, 4))
    model(torch.ones(ROWS, 8)).sum().backward()
    if world.rank == victim:
        store.set("victim", str(os.getpid()))
        model.module.weight.register_hook(lambda _: os.kill(os.getpid(), number))
    saw = _what_backward_raises(model(torch.ones(ROWS, 8)).sum())
    _all_of([rank for rank in world.ranks if rank != victim], world.rank, "have seen it")
    if world.rank == 0 and number is signal.SIGSTOP:
        os.kill(int(store.get("victim")), signal.SIGKILL)
    return saw


def disagree_in_backward(world: World) -> Saw:
    """In one step rank 0 asks for something else first, and the others only after it: nothing fits in that step."""

    def extra() -> None:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        assert work is not None
        extras.append(work)

    def backward(loss: torch.Tensor, model: DistributedDataParallel) -> Saw:
        if world.rank == 0:
            extra()
        saw = _what_backward_raises(loss)
        if world.rank != 0:
            extra()
        saw["extra"] = type(_error_of(extras.pop())).__name__
        return saw

    extras: list[dist.Work] = []
    return _train_with_one_failure(world, backward)


def give_up_in_backward(world: World) -> Saw:
    """In one step rank 0 has a gradient that is not a number, which it was told not to bring."""

    def backward(loss: torch.Tensor, model: DistributedDataParallel) -> Saw:
        return _what_backward_raises(loss * float("nan") if world.rank == 0 else loss)

    return _train_with_one_failure(world, backward)


def _train_with_one_failure(
    world: World, failing_backward: Callable[[torch.Tensor, DistributedDataParallel], Saw]
) -> Saw:
    """The same model goes on after it, and learns what one process learns that leaves that step out."""
    torch.manual_seed(3)
    alone = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    model = DistributedDataParallel(copy.deepcopy(alone))
    optimizer, own = (torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (model, alone))
    saw: Saw = {}
    for step, (rows, goals) in enumerate(_batches(world)):
        mine = slice(world.rank * ROWS, (world.rank + 1) * ROWS)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows[mine]), goals[mine])
        if step == FAILING_STEP:
            saw = failing_backward(loss, model)
            continue
        loss.backward()
        optimizer.step()
        own.zero_grad()
        nn.functional.mse_loss(alone(rows), goals).backward()
        own.step()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    return {**saw, "learnt the same": all(torch.allclose(ours, theirs, atol=1e-6) for ours, theirs in pairs)}


def disagree_on_shapes(world: World) -> Saw:
    tensor = torch.full((3 + world.rank,), 7.0)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    error = _error_of(work)
    again = torch.ones(4)
    dist.all_reduce(again)
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "intact": bool(tensor.eq(7).all()),
        "afterwards": again.tolist(),
        "success": work.is_success(),
    }


def interrupt_a_rank_that_waits(world: World) -> Saw:
    """Rank 0 waits in its backward pass for rank 1, which presses Ctrl-C for it instead of coming."""
    store = _store()
    model = DistributedDataParallel(nn.Linear(8, 4))
    if world.rank == 1:
        _interrupt_when_it_waits(int(store.get("waiting")))
        store.get("interrupted")  # the ring is still there meanwhile
        return {}
    loss = model(torch.ones(ROWS, 8)).sum()
    store.set("waiting", str(os.getpid()))
    try:
        loss.backward()
    except KeyboardInterrupt:
        saw = {"kind": "KeyboardInterrupt"}
    else:
        saw = {"kind": "nothing"}
    store.set("interrupted", "yes")
    return saw


def _interrupt_when_it_waits(pid: int) -> None:
    """When its main thread has slept for so many looks."""
    asleep = 0
    while asleep < LOOKS:
        state = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(") ")[2][0]
        asleep = asleep + 1 if state == "S" else 0
        time.sleep(LOOK_SECONDS)
    os.kill(pid, signal.SIGINT)


def _what_backward_raises(loss: torch.Tensor) -> Saw:
    try:
        loss.backward()
    except Exception as error:
        group: Any = dist.group.WORLD
        original = group.error
        return {
            "kind": type(error).__name__,
            "text": str(error),
            "original": type(original).__name__,
            "lost": getattr(original, "rank", None),
        }
    return {"kind": "nothing"}


def _error_of(work: dist.Work) -> BaseException | None:
    try:
        work.wait()
    except Exception as error:
        return error
    return None


def _batches(world: World) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    chance = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        rows = torch.randn(world.size * ROWS, 8, generator=chance)
        yield rows, torch.randn(world.size * ROWS, 4, generator=chance)


def _all_of(ranks: list[int], rank: int, what: str) -> None:
    """Go on when all of these have come here. By the store, because the ring may be over."""
    store = _store()
    store.set(f"{rank} {what}", "yes")
    store.wait([f"{one} {what}" for one in ranks])


def _store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()
