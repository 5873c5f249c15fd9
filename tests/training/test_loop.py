import asyncio
import itertools
import math
import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from in_memory_ring import InMemoryRing, Meeting
from torch import Tensor, nn

import ringwide
from local_ring import on_every_rank
from ringwide.errors import ConfigError, RingwideError
from ringwide.training.checkpoint import Checkpoints, chosen_step, model_path
from ringwide.training.config import TrainingConfig
from ringwide.training.loop import train
from ringwide.training.models import build_model
from ringwide.training.progress import Evaluation, Progress, Result, StopRequest, TrainingPlan

SHORT = TrainingConfig(hidden_sizes=(16,), batch_size=60, epochs=1)
NOT_AN_END = 1_000_000
SMALL_TEXT = {"model": "transformer", "data": "stdlib", "layers": 1, "context": 16, "text_bytes": 60_000}


async def trained(size: int, config: TrainingConfig, **more: Any) -> list[Result]:
    meeting = Meeting(size)
    return await asyncio.gather(*(train(meeting.ring(rank), config, ignore, **more) for rank in range(size)))


def ignore(_: object) -> None:
    pass


async def parameters_after(size: int, config: TrainingConfig, directory: Path) -> dict[str, Tensor]:
    """Over real connections: what the model holds at the end."""

    async def act(ring: ringwide.Ring) -> None:
        await train(ring, config, ignore, checkpoints=Checkpoints(directory, every_steps=NOT_AN_END, keep=1))

    await on_every_rank(size, act)
    return torch.load(model_path(directory, chosen_step(directory)), weights_only=True)["model"]


# -- it really trains


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "linear", "data": "clusters", "optimizer": "adam", "learning_rate": 0.01},
        {"model": "mlp", "hidden_sizes": (32,), "schedule": "cosine", "warmup_steps": 5},
        {"model": "cnn", "channels": (4, 8), "weight_decay": 0.001},
        {"model": "mlp", "hidden_sizes": (32, 32), "bucket_bytes": 2048, "overlap": True, "accumulate_batches": 2},
        {**SMALL_TEXT, "width": 16},
    ],
    ids=lambda settings: f"{settings['model']}-{len(settings)}",
)
async def test_n_nodes_with_batch_b_follow_one_with_batch_n_times_b(tmp_path: Path, settings: dict[str, Any]) -> None:
    # 1,438, 2,560 or 3,562 samples in steps of 240 (or 480): the last of an epoch is uneven for 3 nodes.
    config = TrainingConfig(**{"learning_rate": 0.05, **settings, "batch_size": 80, "steps": 60})
    alone = config.model_copy(update={"batch_size": 240})
    ours = await parameters_after(3, config, tmp_path / "three")
    theirs = await parameters_after(1, alone, tmp_path / "one")
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(
            tensor, theirs[name], rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


async def test_under_adam_only_what_has_no_gradient_goes_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias of all keys changes no attention: its gradient is zero but for rounding, and Adam steps as far by that."""
    models, width = list[nn.Module](), 16
    monkeypatch.setattr(
        "ringwide.training.loop.build_model", lambda *given: models.append(build_model(*given)) or models[-1]
    )

    async def course(size: int) -> tuple[list[float], float, dict[str, Tensor]]:
        """Loss of each step, held-out loss, and parameters at the end."""
        config = TrainingConfig(**SMALL_TEXT, width=width, optimizer="adam", learning_rate=0.003, steps=200)
        told, meeting = [list[Any]() for _ in range(size)], Meeting(size)
        shared = config.model_copy(update={"batch_size": 84 // size})
        models.clear()
        results = await asyncio.gather(*(train(meeting.ring(rank), shared, told[rank].append) for rank in range(size)))
        by_rank = [[step for part in each if isinstance(part, Progress) for step in part.steps] for each in told]
        steps = zip(*by_rank, strict=True)
        losses = [sum(part.loss * part.samples for part in step) / sum(part.samples for part in step) for step in steps]
        return losses, results[0].test_loss, dict(models[0].named_parameters())

    (losses, held_out, ours), (losses_of_one, held_out_of_one, theirs) = await course(4), await course(1)
    assert len(losses) == 200
    assert losses == pytest.approx(losses_of_one, rel=1e-6)
    assert held_out == pytest.approx(held_out_of_one, rel=1e-6)
    away = {name: (tensor - theirs[name]).abs() for name, tensor in ours.items()}
    keys = away["blocks.0.attention.query_key_value.bias"][width : 2 * width]
    assert keys.max() > 1e-5
    keys.zero_()
    assert max(each.max().item() for each in away.values()) < 1e-5


async def test_the_ranks_end_with_the_same_parameters() -> None:
    results = await trained(3, SHORT)
    assert len({result.fingerprint for result in results}) == 1
    assert len({(result.test_loss, result.test_accuracy) for result in results}) == 1


async def test_ranks_that_never_hear_of_rank_0_end_after_their_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(self: InMemoryRing, tensors: object, root: int = 0) -> object:
        return tensors

    monkeypatch.setattr(InMemoryRing, "broadcast", lost)
    with pytest.raises(RingwideError, match=r"after step 1 parameter '2\.bias' .* of rank 1 differs"):
        await trained(2, SHORT)


async def test_training_learns() -> None:
    result = (await trained(1, TrainingConfig(hidden_sizes=(64,), batch_size=64, epochs=10)))[0]
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.95
    assert result.test_loss < 0.3


async def test_more_ranks_than_samples_in_a_step(tmp_path: Path) -> None:
    # Steps of 5 samples; the last of an epoch has 3 for five ranks, so two of them have none.
    config = TrainingConfig(hidden_sizes=(8,), batch_size=1, steps=288)
    results = await trained(5, config)
    assert len({result.fingerprint for result in results}) == 1
    assert sorted(result.samples for result in results) == [287, 287, 288, 288, 288]


# -- overlap


async def test_what_travels_early_arrives_as_the_same_bits() -> None:
    settings = {"hidden_sizes": (64, 64), "batch_size": 40, "epochs": 1, "bucket_bytes": 4096}
    plain = await trained(2, TrainingConfig(**settings, overlap=False))
    early = await trained(2, TrainingConfig(**settings, overlap=True))
    assert {result.fingerprint for result in plain + early} == {plain[0].fingerprint}
    assert plain[0].hidden_seconds == 0
    assert 0 < early[0].hidden_seconds <= early[0].network_seconds


async def test_gradients_overlap_by_themselves_when_they_fill_several_buckets() -> None:
    plans: list[Any] = []
    for bucket_bytes in (1024, 10**6):
        config = TrainingConfig(hidden_sizes=(16,), batch_size=500, steps=1, bucket_bytes=bucket_bytes)
        await train(Meeting(1).ring(0), config, plans.append)
    several, one = (plan for plan in plans if isinstance(plan, TrainingPlan))
    assert (several.overlapped, one.overlapped) == (True, False)
    assert several.buckets > one.buckets == 1


# -- what it tells


async def test_every_step_is_told_once_and_time_is_the_clocks() -> None:
    told: list[Any] = []
    ticks = itertools.count(100.0, 0.001)
    config = TrainingConfig(hidden_sizes=(), batch_size=720, epochs=2, evaluate_every_steps=3)
    ring = Meeting(1).ring(0)
    result = await train(ring, config, told.append, clock=lambda: next(ticks))
    (plan,) = (message for message in told if isinstance(message, TrainingPlan))
    steps = [step for message in told if isinstance(message, Progress) for step in message.steps]
    evaluations = [message for message in told if isinstance(message, Evaluation)]
    assert told[0] is plan
    assert (plan.parameters, plan.gradient_bytes, plan.samples, plan.test_samples) == (650, 2600, 1438, 359)
    assert (plan.steps_per_epoch, plan.first_step, plan.last_step, plan.seconds) == (2, 1, 4, None)
    assert [(step.number, step.epoch, step.samples) for step in steps] == [
        (1, 0, 720),
        (2, 0, 718),
        (3, 1, 720),
        (4, 1, 718),
    ]
    assert [evaluation.step for evaluation in evaluations] == [3, 4]
    assert evaluations[-1].loss == result.test_loss
    assert (result.steps, result.batches, result.epochs, result.samples) == (4, 4, 2.0, 2876)
    assert result.loss == pytest.approx(sum(step.loss * step.samples for step in steps) / 2876)
    assert steps[-1].seconds < result.seconds < 0.1
    assert result.bytes_sent == 1000 * (ring.calls.count("gradients 0") + ring.calls.count("max"))


async def test_only_what_training_sends_and_encodes_is_counted(tmp_path: Path) -> None:
    config = TrainingConfig(hidden_sizes=(), batch_size=720, steps=8, evaluate_every_steps=2)
    ring = Meeting(1).ring(0)
    result = await train(ring, config, ignore, checkpoints=Checkpoints(tmp_path, every_steps=3, keep=1))
    beats = ring.calls.count("max")
    assert result.bytes_sent == 1000 * (8 + beats)
    assert result.compression_ratio == (4 * 8 + beats) / (8 + beats)
    assert result.codec_seconds == 0.5 * 8 + 100 * beats


@pytest.mark.parametrize("evaluate_every_steps", [None, 2])
@pytest.mark.parametrize("size", [2, 3])
async def test_what_some_have_sent_the_others_have_received(size: int, evaluate_every_steps: int | None) -> None:
    """A rank may send what comes after the training, or after a pause, before another has begun to count that."""
    config = TrainingConfig(
        model="linear", data="clusters", batch_size=64, steps=5, evaluate_every_steps=evaluate_every_steps
    )

    async def act(ring: ringwide.Ring) -> Result:
        return await train(ring, config, ignore)

    for results in await on_every_rank(size, act, same_host="tcp"), await trained(size, config):
        assert sum(result.bytes_sent for result in results) > 0
        assert sum(result.bytes_sent for result in results) == sum(result.bytes_received for result in results)


async def test_what_was_evaluated_after_the_last_step_is_not_evaluated_again() -> None:
    told: list[Any] = []
    config = TrainingConfig(hidden_sizes=(), batch_size=720, steps=4, evaluate_every_steps=2)
    result = await train(Meeting(1).ring(0), config, told.append)
    evaluations = [message for message in told if isinstance(message, Evaluation)]
    assert [evaluation.step for evaluation in evaluations] == [2, 4]
    assert (result.test_loss, result.test_accuracy) == (evaluations[-1].loss, evaluations[-1].accuracy)


async def test_a_rank_without_samples_has_no_batches_and_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "one_sample.py").write_text(
        "import torch\ndef data(): return [(torch.ones(1, 3), torch.ones(1, dtype=torch.int64)) for _ in range(2)]\n"
    )
    config = TrainingConfig(model="linear", data="one_sample:data", batch_size=1, steps=3)
    results = await trained(2, config)
    assert sorted(result.batches for result in results) == [0, 3]
    assert [math.isnan(result.loss) for result in results] == [not result.batches for result in results]


async def test_accumulated_batches_are_counted() -> None:
    config = TrainingConfig(hidden_sizes=(), batch_size=100, accumulate_batches=5, epochs=1)
    result = (await trained(1, config))[0]
    assert (result.steps, result.batches) == (3, 15)


# -- how it ends


class Clock:
    """A clock of its own for every rank: some run faster than others."""

    def __init__(self, tick: float) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


async def test_all_ranks_stop_after_the_same_step_though_their_clocks_differ() -> None:
    meeting, config = Meeting(3), TrainingConfig(hidden_sizes=(), batch_size=10, seconds=2.0)
    clocks = [Clock(0.001), Clock(0.01), Clock(0.003)]
    results = await asyncio.gather(
        *(train(meeting.ring(rank), config, ignore, clock=clock) for rank, clock in enumerate(clocks))
    )
    assert len({result.steps for result in results}) == 1
    assert len({result.fingerprint for result in results}) == 1
    assert 2.0 <= max(result.seconds for result in results) < 2.5
    assert {result.stopped_by for result in results} == {0}


async def test_a_signal_on_one_rank_stops_all_after_the_same_step() -> None:
    meeting, config = Meeting(3), TrainingConfig(hidden_sizes=(), batch_size=10, steps=NOT_AN_END)
    requests = [StopRequest() for _ in range(3)]

    def ask(message: object) -> None:
        if isinstance(message, Progress) and message.steps[-1].number >= 5:
            requests[1].signal = 15

    tells = [ignore, ask, ignore]
    results = await asyncio.gather(
        *(train(meeting.ring(rank), config, tells[rank], stop=requests[rank]) for rank in range(3))
    )
    assert len({result.steps for result in results}) == 1
    assert {result.stopped_by for result in results} == {15}


# -- clipping, and losses that weigh


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("codec", ["none", "int8"])
async def test_clipped_gradients_are_the_same_on_all_ranks(codec: str, overlap: bool) -> None:
    config = TrainingConfig(
        hidden_sizes=(24,), batch_size=30, steps=12, overlap=overlap, bucket_bytes=2048, clip_norm=0.3
    )
    settings = {"codec": codec, "allow_lossy": True, "threshold_bytes": 0, "algorithm": "ring"}

    async def act(ring: ringwide.Ring) -> tuple[Result, list[float | None]]:
        told: list[Any] = []
        result = await train(ring, config, told.append)
        return result, [step.gradient_norm for told in told if isinstance(told, Progress) for step in told.steps]

    (first, norms), *others = await on_every_rank(3, act, **(settings if codec != "none" else {}))
    assert {result.fingerprint for result, _ in others} == {first.fingerprint}
    assert all(theirs == norms for _, theirs in others)
    assert max(norms) > 0.3
    assert first.network_seconds > 0


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_norm_that_is_not_finite_ends_all_ranks_before_the_step(
    monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    models = [nn.Linear(64, 10) for _ in range(2)]
    handed = iter(models)
    monkeypatch.setattr("ringwide.training.loop.build_model", lambda config, data: next(handed))
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", lambda outputs, *_, **__: outputs.sum() * math.inf)
    meeting, config = Meeting(2), TrainingConfig(model="linear", steps=3, overlap=overlap, clip_norm=1.0)
    errors = await asyncio.gather(
        *(train(meeting.ring(rank), config, ignore) for rank in range(2)), return_exceptions=True
    )
    for error in errors:
        assert isinstance(error, ConfigError)
        assert "training.clip_norm: 1: in step 1 the norm of the gradients is " in str(error)
    assert all(parameter.isfinite().all() for model in models for parameter in model.parameters())


LOSSES = """
from torch.nn.functional import cross_entropy
calls = 0
def plain(outputs, targets): return cross_entropy(outputs, targets)
def weighed(outputs, targets): return cross_entropy(outputs, targets), len(targets)
def fickle(outputs, targets):
    global calls
    calls += 1
    return weighed(outputs, targets) if calls > 1 else plain(outputs, targets)
"""


@pytest.fixture
def _losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loop_losses.py").write_text(LOSSES)


@pytest.mark.usefixtures("_losses")
async def test_only_a_loss_that_weighs_costs_a_collective_for_every_step() -> None:
    config, fingerprints = TrainingConfig(model="linear", batch_size=100, steps=5), set()
    others = 7  # to compare settings; parameters, after steps 1, 2, 4 and 5; at the end traffic; and to evaluate
    for loss, gathers in ("cross_entropy", 0), ("loop_losses:plain", 1), ("loop_losses:weighed", 5):
        ring = Meeting(1).ring(0)
        result = await train(ring, config.model_copy(update={"loss": loss}), ignore)
        assert ring.calls.count("all_gather") == others + gathers, loss
        fingerprints.add(result.fingerprint)
        assert 0 < result.loss < 3
    assert len(fingerprints) == 1


@pytest.mark.usefixtures("_losses")
async def test_a_loss_that_begins_to_weigh_later_is_told() -> None:
    with pytest.raises(ConfigError, match=r"'loop_losses:fickle': returned a weight, but none in the first step"):
        await trained(1, TrainingConfig(model="linear", steps=5, loss="loop_losses:fickle"))


# -- models that keep something beside what they learn


class Remembering(nn.Module):
    """What it has seen goes into what it computes, and the ranks see different samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(64, 10), nn.BatchNorm1d(10)
        self.register_buffer("seen", torch.zeros(64))
        self.register_buffer("mask", torch.ones(10, dtype=torch.bool))
        self.brightest: float | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen.lerp_(inputs.mean(dim=0), 0.1)
            self.brightest = max(self.brightest or 0.0, inputs.mean(dim=1).max().item())
        return self.norm(self.layer(inputs - self.seen)) * self.mask * (1 + (self.brightest or 0.0))

    def get_extra_state(self) -> Any:
        return None if self.brightest is None else {"brightest": self.brightest, "names": {"a", "b", "c"}}

    def set_extra_state(self, state: Any) -> None:
        self.brightest = state["brightest"]


@pytest.fixture
def _remembering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringwide.training.loop.build_model", lambda config, data: Remembering())


@pytest.mark.usefixtures("_remembering")
async def test_to_look_at_a_model_does_not_change_its_training() -> None:
    config = TrainingConfig(batch_size=60, steps=8)
    seldom = await trained(2, config)
    often = await trained(2, config.model_copy(update={"evaluate_every_steps": 2}))
    assert {result.fingerprint for result in seldom + often} == {seldom[0].fingerprint}
    assert {(result.test_loss, result.test_accuracy) for result in seldom + often} == {
        (seldom[0].test_loss, seldom[0].test_accuracy)
    }


@pytest.mark.usefixtures("_remembering")
async def test_what_each_rank_remembers_is_in_its_checkpoint(tmp_path: Path) -> None:
    config = TrainingConfig(batch_size=60, steps=8)
    whole, shorter, meeting = await trained(2, config), config.model_copy(update={"steps": 5}), Meeting(2)
    checkpoints = [Checkpoints(tmp_path, every_steps=NOT_AN_END, keep=1) for _ in range(2)]
    await asyncio.gather(
        *(train(meeting.ring(rank), shorter, ignore, checkpoints=each) for rank, each in enumerate(checkpoints))
    )
    went_on = await trained(2, config, resume=tmp_path)
    assert {result.fingerprint for result in went_on} == {whole[0].fingerprint}
    assert went_on[0].test_loss == whole[0].test_loss


async def test_a_model_that_is_random_in_evaluation_trains_and_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AlwaysDrops(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            chance = torch.rand(inputs.shape) * numpy.random.rand() * random.random()
            return super().forward(inputs * chance)

    monkeypatch.setattr("ringwide.training.loop.build_model", lambda config, data: AlwaysDrops(64, 10))
    seldom = TrainingConfig(batch_size=60, steps=8)
    often = seldom.model_copy(update={"evaluate_every_steps": 2})
    (whole,) = await trained(1, often)
    await trained(1, often.model_copy(update={"steps": 4}), checkpoints=Checkpoints(tmp_path, every_steps=4, keep=1))
    for other in (await trained(1, often, resume=tmp_path), await trained(1, seldom)):
        assert (other[0].fingerprint, other[0].test_loss) == (whole.fingerprint, whole.test_loss)


@pytest.mark.usefixtures("_remembering")
async def test_all_ranks_judge_the_model_of_rank_0_over_real_connections() -> None:
    async def act(ring: ringwide.Ring) -> Result:
        return await train(ring, TrainingConfig(batch_size=60, steps=3), ignore)

    first, second = await on_every_rank(2, act)
    assert first.fingerprint == second.fingerprint
    assert first.test_loss == second.test_loss


# -- mistakes


async def test_one_rank_that_resumes_alone_is_named_before_the_first_step(tmp_path: Path) -> None:
    meeting = Meeting(2)
    errors = await asyncio.gather(
        train(meeting.ring(0), SHORT, ignore, checkpoints=Checkpoints(tmp_path, every_steps=5, keep=1)),
        train(meeting.ring(1), SHORT, ignore, resume=tmp_path),
        return_exceptions=True,
    )
    for error in errors:
        assert isinstance(error, ConfigError)
        assert "rank 1 has other 'checkpoint.every_steps' than rank 0" in str(error)


async def test_ranks_with_other_settings_are_named_before_the_first_step() -> None:
    meeting = Meeting(3)
    configs = [SHORT, SHORT, SHORT.model_copy(update={"learning_rate": 0.2})]
    errors = await asyncio.gather(
        *(train(meeting.ring(rank), config, ignore) for rank, config in enumerate(configs)), return_exceptions=True
    )
    for error in errors:
        assert isinstance(error, ConfigError)
        assert "rank 2 has other settings under 'training' than rank 0" in str(error)


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        raise RuntimeError("out of order")


@pytest.mark.parametrize("overlap", [True, False])
async def test_an_error_of_the_model_comes_out_and_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    monkeypatch.setattr("ringwide.training.loop.build_model", lambda config, data: Broken())
    with pytest.raises(RuntimeError, match="out of order"):
        await trained(1, TrainingConfig(overlap=overlap))
