"""Every codec against exact sums, as one rank of a fleet. Only bfloat16 needs torch, whose import takes seconds."""

from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

import ringwide
from ringwide.compression.codecs.registry import make

COUNT = 20_011
CALLS_OF_AUTO = 12
"""Enough for it to measure raw numbers and try something else."""
FLOAT32_ROUNDING = 1e-6
BFLOAT16_ROUNDING = 2.0**-8


@dataclass
class Findings:
    """What one rank saw with one codec: digests by what was summed, what was wrong, with which codecs it travelled."""

    digests: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)


async def try_codecs(
    rank: int, peers: list[list[str]], configs: list[dict[str, Any]], kinds: list[str]
) -> list[dict[str, Any]]:
    """One ring for each configuration, and in each one sum of each kind of numbers."""
    findings = []
    for addresses, settings in zip(peers, configs, strict=True):
        async with ringwide.join(rank=rank, peers=addresses, config=ringwide.RingConfig(**settings)) as ring:
            findings.append(asdict(await try_codec(ring, kinds)))
    return findings


async def try_codec(ring: ringwide.Ring, kinds: list[str]) -> Findings:
    found = Findings()
    for kind in kinds:
        for call in range(CALLS_OF_AUTO if ring.config.codec == "auto" else 1):
            tensor = tensor_of(numbers_of(kind, ring.rank), kind)
            await ring.allreduce(tensor, "sum" if kind == "int32" else "mean", bucket=kind)
            result = as_float64(tensor)
            found.digests[f"{kind} {call}"] = blake2b(result.tobytes(), digest_size=8).hexdigest()
            if problem := far_off(ring, kind, result):
                found.wrong.append(f"{kind}, call {call}: {problem}")
    found.used = sorted({tally.codec for link in ring.statistics().links for tally in link.sent})
    return found


# -- numbers


def numbers_of(kind: str, rank: int) -> Any:
    chance = np.random.default_rng([rank, COUNT])
    if kind == "int32":
        return chance.integers(-9, 10, COUNT, np.int32)
    numbers = chance.normal(size=COUNT)
    if kind == "sparse":
        numbers[chance.random(COUNT) < 0.95] = 0
    numbers = numbers.astype(np.float64 if kind == "float64" else np.float32)
    return rounded_to_bfloat16(numbers) if kind == "bfloat16" else numbers


def rounded_to_bfloat16(numbers: Any) -> Any:
    return (numbers.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def tensor_of(numbers: Any, kind: str) -> Any:
    if kind != "bfloat16":
        return numbers
    import torch

    return torch.from_numpy(numbers).bfloat16()


def as_float64(tensor: Any) -> Any:
    return (tensor if isinstance(tensor, np.ndarray) else tensor.float().numpy()).astype(np.float64)


# -- promises


def far_off(ring: ringwide.Ring, kind: str, result: Any) -> str:
    brought = [numbers_of(kind, rank).astype(np.float64) for rank in range(ring.size)]
    magnitudes = sum(map(np.abs, brought))
    if kind == "int32":
        exact, allowed = sum(brought), 0.0
    else:
        exact, allowed = sum(brought) / ring.size, promise(ring.config, magnitudes) + rounding(kind, magnitudes)
    excess = np.abs(result - exact) - allowed
    worst = int(excess.argmax())
    return f"{result[worst]} instead of {exact[worst]}" if excess[worst] > 0 else ""


def promise(config: ringwide.RingConfig, magnitudes: Any) -> float:
    """Each rank encodes each sum once, and no sum is larger than all magnitudes together: so that is true of the mean.

    What one call of `auto` has lost is added to the next.
    """
    if not config.allow_lossy:
        return 0.0
    codec = make("int8") if config.codec == "auto" else config.make_codec()
    times = 2.0 if config.codec == "auto" else 1.0
    return 1.02 * times * float(codec.error_bound(magnitudes.astype(np.float32)).max())  # sums have errors, too


def rounding(kind: str, magnitudes: Any) -> Any:
    return (BFLOAT16_ROUNDING if kind == "bfloat16" else FLOAT32_ROUNDING) * magnitudes
