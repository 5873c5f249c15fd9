import asyncio
import itertools

import pytest
import torch
from in_memory_ring import InMemoryRing, Meeting

from ringwide.training.config import TrainingConfig
from ringwide.training.data import Samples, Share
from ringwide.training.loop import backward, train
from ringwide.training.models import mlp
from ringwide.training.progress import Result, Step

SHORT = TrainingConfig(hidden_sizes=(16,), batch_size=60, epochs=1)


async def trained(size: int, config: TrainingConfig) -> list[Result]:
    meeting = Meeting(size)
    return await asyncio.gather(*(train(meeting.ring(rank), config, lambda _: None) for rank in range(size)))


async def test_the_ranks_end_with_the_same_parameters() -> None:
    results = await trained(3, SHORT)
    assert len({result.fingerprint for result in results}) == 1
    assert len({result.test_accuracy for result in results}) == 1


async def test_ranks_that_never_hear_of_rank_0_end_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(self: InMemoryRing, tensors: object, root: int = 0) -> object:
        return tensors

    monkeypatch.setattr(InMemoryRing, "broadcast", lost)
    results = await trained(2, SHORT)
    assert results[0].fingerprint != results[1].fingerprint


async def test_the_number_of_ranks_does_not_change_what_is_learnt() -> None:
    # 1,438 samples in batches of 240: the last one has 238, uneven for 4 ranks.
    alone = (await trained(1, TrainingConfig(hidden_sizes=(16,), batch_size=240, epochs=2)))[0]
    four = await trained(4, TrainingConfig(hidden_sizes=(16,), batch_size=60, epochs=2))
    assert sum(result.loss for result in four) / 4 == pytest.approx(alone.loss, rel=1e-3)
    assert four[0].test_accuracy == pytest.approx(alone.test_accuracy, abs=0.01)


def test_the_mean_over_uneven_shares_is_the_gradient_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    model = mlp(3, (5,), 2)
    samples = Samples(torch.randn(7, 3), torch.randint(0, 2, (7,)))

    def gradients(first: int, last: int, size: int) -> list[torch.Tensor]:
        backward(model, samples, Share(torch.arange(first, last), batch_total=7), size)
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    whole = gradients(0, 7, 1)
    of_ranks = [gradients(first, last, 4) for first, last in [(0, 1), (1, 4), (4, 4), (4, 7)]]
    for expected, *parts in zip(whole, *of_ranks, strict=True):
        torch.testing.assert_close(sum(parts) / 4, expected)


async def test_every_step_is_reported_and_time_is_shared_out() -> None:
    steps: list[Step] = []
    ticks = itertools.count(100.0, 8.0)
    config = TrainingConfig(hidden_sizes=(), batch_size=720, epochs=2)
    result = await train(Meeting(1).ring(0), config, steps.append, clock=lambda: next(ticks))
    assert [(step.number, step.total, step.epoch) for step in steps] == [(1, 4, 0), (2, 4, 0), (3, 4, 1), (4, 4, 1)]
    assert steps[-1].loss == result.loss < steps[1].loss
    # The broadcast came before the clock was started; each of the four all-reduces counts one second.
    assert (result.steps, result.seconds, result.network_seconds) == (4, 8.0, 4.0)
    assert (result.steps_per_second, result.network_share) == (0.5, 0.5)


async def test_training_learns() -> None:
    result = (await trained(1, TrainingConfig(hidden_sizes=(64,), batch_size=64, epochs=10)))[0]
    assert result.test_accuracy > 0.95
