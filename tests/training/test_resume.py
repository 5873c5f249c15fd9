"""A run that goes on from a checkpoint: to the same bits, or not at all."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from in_memory_ring import Meeting
from torch import nn

import ringwide
from local_ring import on_every_rank
from ringwide.collectives.plan import CollectiveKind, Planner
from ringwide.config.validation import DECIDES_BITS, fields_with
from ringwide.errors import ConfigError
from ringwide.runtime.call_cache import PlanCache
from ringwide.tensors.leaves import leaves_of
from ringwide.training.checkpoint import Checkpoints
from ringwide.training.config import TrainingConfig
from ringwide.training.loop import train
from ringwide.training.optimizers import flatten
from ringwide.training.progress import Result
from ringwide.training.resume import resume_settings

PLAIN = TrainingConfig(hidden_sizes=(8,), batch_size=100, steps=4)
LONGER = PLAIN.model_copy(update={"steps": 6})


async def alone(config: TrainingConfig, directory: Path, *, keep: int = 9, **more: Any) -> Result:
    checkpoints = Checkpoints(directory, every_steps=2, keep=keep)
    return await train(Meeting(1).ring(0), config, ignore, checkpoints=checkpoints, **more)


def ignore(_: object) -> None:
    pass


# -- going on with something else


async def refusal(config: TrainingConfig, resume: Path, **more: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        await train(Meeting(1).ring(0), config, ignore, resume=resume, **more)
    assert "\n" not in str(raised.value)
    return str(raised.value)


async def test_other_settings_are_refused(tmp_path: Path) -> None:
    await alone(PLAIN, tmp_path)
    told = await refusal(LONGER.model_copy(update={"batch_size": 50}), tmp_path)
    assert "step-000000004.pt: written with training.batch_size: 100, this run has 50" in told


async def test_other_settings_of_the_ring_are_refused(tmp_path: Path) -> None:
    await alone(PLAIN, tmp_path, ring_settings={"codec": "int8", "lanes": 1})
    told = await refusal(LONGER, tmp_path, ring_settings={"codec": "none", "lanes": 1})
    assert "written with ring.codec: 'int8', this run has 'none'; use the same" in told


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
async def test_an_end_that_moves_the_learning_rate_is_refused_with_the_cure(tmp_path: Path, schedule: str) -> None:
    falling = PLAIN.model_copy(update={"schedule": schedule})
    await alone(falling, tmp_path)
    longer = falling.model_copy(update={"steps": 6})
    told = await refusal(longer, tmp_path)
    assert "decays until step 4, in this run it would decay until step 6; set training.decay_steps: 4" in told
    cured = longer.model_copy(update={"decay_steps": 4})
    assert (await train(Meeting(1).ring(0), cured, ignore, resume=tmp_path)).steps == 2


async def test_other_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "changing_data.py").write_text(
        "import torch\nVALUE = 1.0\n"
        "def data(): return [(torch.full((8, 3), VALUE), torch.arange(8) % 2) for _ in range(2)]\n"
    )
    config = PLAIN.model_copy(update={"data": "changing_data:data", "batch_size": 2})
    await alone(config, tmp_path / "kept")
    monkeypatch.setattr("changing_data.VALUE", 2.0)
    told = await refusal(config.model_copy(update={"steps": 6}), tmp_path / "kept")
    assert "written with other data than training.data: 'changing_data:data' gives now" in told


@pytest.mark.parametrize("steps", [3, 4])
async def test_a_run_that_is_already_past_its_end_is_refused(tmp_path: Path, steps: int) -> None:
    await alone(PLAIN, tmp_path)
    told = await refusal(PLAIN.model_copy(update={"steps": steps}), tmp_path)
    assert f"the checkpoint is of step 4, and this run would end after step {steps}: nothing is left to train" in told


async def test_another_model_is_refused_by_its_first_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await alone(PLAIN, tmp_path)
    for other, difference in (
        (nn.Sequential(nn.Linear(64, 10)), "'0.weight' was float32 of shape (8, 64) then, and is"),
        (nn.Linear(64, 10), "'weight' was not there then, and is float32 of shape (10, 64) in this run"),
    ):
        monkeypatch.setattr("ringwide.training.loop.build_model", lambda config, data, other=other: other)
        assert difference in await refusal(LONGER, tmp_path)


# -- elsewhere: another number of cores, other connections

WIDE = TrainingConfig(hidden_sizes=(2200,), batch_size=8, steps=3)  # a bucket of 660,040 bytes
GOES_ON = WIDE.model_copy(update={"steps": 6})


async def somewhere(
    monkeypatch: pytest.MonkeyPatch,
    config: TrainingConfig,
    *,
    cores: int = 2,
    directory: Path | None = None,
    resume: Path | None = None,
    **settings: Any,
) -> str:
    """Fingerprint after training on three ranks, which together have so many cores. Two add up the same either way."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))

    async def act(ring: ringwide.Ring) -> str:
        checkpoints = None if directory is None else Checkpoints(directory, every_steps=99, keep=1)
        decide_bits = ring.config.model_dump(mode="json", include=set(fields_with(ringwide.RingConfig, DECIDES_BITS)))
        more = {"checkpoints": checkpoints, "resume": resume, "ring_settings": decide_bits}
        return (await train(ring, config, ignore, **more)).fingerprint

    (first, *others) = await on_every_rank(3, act, **settings)
    assert others == [first, first]
    return first


@pytest.mark.parametrize("elsewhere", [{"same_host": "tcp"}, {"same_host": "unix"}, {"cores": 8}], ids=str)
async def test_who_goes_on_elsewhere_adds_up_in_the_same_order_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: dict[str, Any]
) -> None:
    whole = await somewhere(monkeypatch, GOES_ON)
    assert await somewhere(monkeypatch, GOES_ON, **elsewhere) != whole  # so it matters
    await somewhere(monkeypatch, WIDE, directory=tmp_path)
    with pytest.raises(ConfigError) as raised:
        await somewhere(monkeypatch, GOES_ON, resume=tmp_path, **elsewhere)
    told = str(raised.value)
    assert "added up bucket 'gradients 0' (660040 bytes) by the tree; this one would by the ring" in told
    cure = re.findall(r"--set ring\.(\w+)=(\d+)", told)
    assert await somewhere(monkeypatch, GOES_ON, resume=tmp_path, **elsewhere, **dict(cure)) == whole


async def test_a_larger_tree_elsewhere_is_refused_too_and_made_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await somewhere(monkeypatch, GOES_ON, cores=8)
    await somewhere(monkeypatch, WIDE, cores=8, directory=tmp_path)
    with pytest.raises(ConfigError, match=r"by the ring; this one would by the tree, .* --set ring\.tree_bytes=0$"):
        await somewhere(monkeypatch, GOES_ON, resume=tmp_path)
    assert await somewhere(monkeypatch, GOES_ON, resume=tmp_path, tree_bytes=0) == whole


@pytest.mark.parametrize(
    ("dtype", "half_precision", "itemsize"),
    [
        (torch.float32, "float32", 4),
        (torch.float64, "native", 8),
        (torch.bfloat16, "float32", 4),
        (torch.float16, "float32", 4),
        (torch.bfloat16, "native", 2),
    ],
)
def test_what_is_compared_is_the_algorithm_that_the_ring_chooses(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, half_precision: str, itemsize: int
) -> None:
    """It adds up half precision in float32, and a bucket of twice the bytes may be too large for the tree."""
    buckets = flatten(nn.Linear(100, 30, dtype=dtype), 1024**2)
    nbytes = buckets[0].gradients.numel() * itemsize
    for tree_bytes, algorithm in ((nbytes, "tree"), (nbytes - 1, "ring")):
        planner = Planner(rank=0, size=2, segment_bytes=2**20, algorithm="auto", tree_bytes=tree_bytes)
        plans, (_, signature) = (
            PlanCache(planner, size=2, half_precision=half_precision, encodes=False),
            leaves_of(buckets[0].gradients),
        )
        (part,) = plans.find(CollectiveKind.ALLREDUCE, signature, op="mean").plan.parts
        assert part.algorithm == algorithm
        ring = Meeting(2).ring(0)
        monkeypatch.setattr(ring, "algorithm_for", planner.algorithm_for)
        settings = {"half_precision": half_precision}
        found = resume_settings(PLAIN, ring, buckets, ring_settings=settings, last_step=4, data=b"")
        assert found.sums == {"gradients 0": (algorithm, nbytes)}


async def test_what_is_written_otherwise_and_adds_up_the_same_goes_on(tmp_path: Path) -> None:
    """Also elsewhere: buckets this small take the tree everywhere, and one rank has nothing to add up."""
    await alone(PLAIN, tmp_path, ring_settings={"algorithm": "auto", "tree_bytes": "auto"})
    settings = {"algorithm": "tree", "tree_bytes": 4096}
    assert (await train(Meeting(1).ring(0), LONGER, ignore, resume=tmp_path, ring_settings=settings)).steps == 2


async def test_another_algorithm_is_refused_by_name(tmp_path: Path) -> None:
    async def two(config: TrainingConfig, tree_bytes: int, algorithm: str, **more: Any) -> list[object]:
        meeting = Meeting(2)
        rings = [meeting.ring(rank) for rank in range(2)]
        for ring in rings:
            ring.tree_bytes = tree_bytes
        settings = {"ring_settings": {"algorithm": algorithm}}
        checkpoints = [None if "resume" in more else Checkpoints(tmp_path, every_steps=9, keep=1) for _ in rings]
        acts = [
            train(ring, config, ignore, checkpoints=c, **settings, **more)
            for ring, c in zip(rings, checkpoints, strict=True)
        ]
        return await asyncio.gather(*acts, return_exceptions=True)

    await two(PLAIN, 2**20, "auto")
    for error in await two(LONGER, 0, "ring", resume=tmp_path):
        assert isinstance(error, ConfigError)
        assert "written with ring.algorithm: 'auto', this run has 'ring'; use the same" in str(error)


# -- bits that nobody can promise


async def test_another_torch_or_processor_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await alone(PLAIN, tmp_path)
    await train(Meeting(1).ring(0), LONGER, ignore, resume=tmp_path)
    assert caplog.text == ""
    monkeypatch.setattr("ringwide.training.resume.machine", lambda: {"torch": "0.4", "processor": "abacus"})
    await train(Meeting(1).ring(0), LONGER, ignore, resume=tmp_path)
    assert "step-000000004.rank-0.pt: written with {'torch': '" in caplog.text
    assert "this run has {'torch': '0.4', 'processor': 'abacus'}: the last bits may differ" in caplog.text


@pytest.mark.parametrize(
    ("ring", "warns"),
    [
        ({"codec": "auto", "allow_lossy": True, "threshold_bytes": 0}, True),
        ({"codec": "int8", "allow_lossy": True, "threshold_bytes": "auto"}, True),
        ({"codec": "int8", "allow_lossy": True, "threshold_bytes": 0}, False),
        ({"codec": "lz4", "allow_lossy": True, "threshold_bytes": "auto"}, False),
        ({"codec": "auto", "allow_lossy": False, "threshold_bytes": "auto"}, False),
    ],
)
async def test_losses_that_follow_from_measured_times_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ring: dict[str, Any], warns: bool
) -> None:
    await alone(PLAIN, tmp_path, ring_settings=ring)
    await train(Meeting(1).ring(0), LONGER, ignore, resume=tmp_path, ring_settings=ring)
    assert ("follows from measured times, so no two runs have the same bits" in caplog.text) == warns
