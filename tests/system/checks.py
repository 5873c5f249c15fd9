"""Every dtype, operation and collective against a numpy reference, as one rank of a fleet."""

import functools
import itertools
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

import ringwide
from ringwide.tensors.arithmetic import DTYPES, FLOATS, HALVES, OPERATIONS, OpName

SMALL, MEDIUM, BULK = 7, 5001, 150_001
UFUNCS = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}

torch.set_num_threads(1)  # many ranks share this machine


# -- known numbers


@functools.cache
def ones_and_twos(rank: int, count: int) -> Any:
    return np.random.default_rng([rank, count]).integers(1, 3, size=count)


@functools.cache
def reduced(size: int, count: int, op: str) -> Any:
    return functools.reduce(UFUNCS[op], [ones_and_twos(rank, count) for rank in range(size)])


def tensor_of(numbers: Any, dtype: str) -> torch.Tensor:
    return torch.from_numpy(numbers).to(getattr(torch, dtype), copy=True)


def expected(size: int, count: int, dtype: str, op: str) -> torch.Tensor:
    total = reduced(size, count, op)
    if op == "mean":
        carrier = np.float64 if dtype == "float64" else np.float32
        total = total.astype(carrier) / carrier(size)
    return tensor_of(total, dtype)


def cases() -> list[tuple[str, OpName, int]]:
    """Every dtype with every operation; the long tensors for every dtype and for every operation."""
    return [
        (dtype, op, count)
        for dtype, op, count in itertools.product(DTYPES, OPERATIONS, (SMALL, MEDIUM, BULK))
        if (op != "mean" or dtype in FLOATS) and (count != BULK or op == "sum" or dtype == "float32")
    ]


# -- right numbers


async def check_everything(rank: int, peers: list[list[str]], configs: list[dict[str, Any]]) -> dict[str, Any]:
    """All collectives under every configuration. What was wrong, how much was checked, and a digest of inexact sums."""
    wrong: list[str] = []
    digest = blake2b()
    checked = 0
    for addresses, settings in zip(peers, configs, strict=True):
        async with ringwide.join(rank=rank, peers=addresses, config=ringwide.RingConfig(**settings)) as ring:
            found = [*await check_allreduce(ring), *await check_the_others(ring)]
            wrong += [f"{settings} {what}" for what, right in found if not right]
            checked += len(found)
            digest.update(await inexact_sums(ring))
    return {"wrong": wrong, "checked": checked, "digest": digest.hexdigest()}


async def check_allreduce(ring: ringwide.Ring) -> list[tuple[str, bool]]:
    found = []
    for dtype, op, count in cases():
        tensor = tensor_of(ones_and_twos(ring.rank, count), dtype)
        await ring.allreduce(tensor, op)
        found.append((f"{dtype} {op} {count}", torch.equal(tensor, expected(ring.size, count, dtype, op))))
    return found


async def check_the_others(ring: ringwide.Ring) -> list[tuple[str, bool]]:
    found = []
    for dtype, count in itertools.product(("float32", "bfloat16", "int8"), (SMALL, BULK)):
        tensor = tensor_of(ones_and_twos(ring.rank, count), dtype)
        share = slice(count * ring.rank // ring.size, count * (ring.rank + 1) // ring.size)
        part = await ring.reduce_scatter(tensor, op="sum")
        found.append(("reduce_scatter", torch.equal(part, expected(ring.size, count, dtype, "sum")[share])))
        parts = [tensor_of(ones_and_twos(rank, count), dtype) for rank in range(ring.size)]
        gathered = await ring.all_gather(tensor)
        found.append(("all_gather", all(map(torch.equal, gathered, parts))))
        root = ring.size - 1
        found.append(("broadcast", torch.equal(await ring.broadcast(tensor, root=root), parts[root])))
        await ring.barrier()
    return found


async def inexact_sums(ring: ringwide.Ring) -> bytes:
    """Sums that depend on the order of the additions: they must still have the same bits everywhere."""
    digest = blake2b()
    for dtype, count in itertools.product(("float64", "float32", *HALVES), (SMALL, MEDIUM, BULK)):
        chance = np.random.default_rng([ring.rank, count])
        tensor = tensor_of(chance.normal(size=count), dtype)
        await ring.allreduce(tensor)
        digest.update(tensor.view(torch.int8).numpy().tobytes())
    return digest.digest()
