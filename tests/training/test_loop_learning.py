"""Every model that is built in learns from its data, in one process and without the loop."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ringwide.training.config import TrainingConfig
from ringwide.training.data_sources import load_data
from ringwide.training.learner import correct, loss_function
from ringwide.training.models import build_model
from ringwide.training.optimizers import learning_rate_at, make_optimizer
from ringwide.training.samples import shares


def learnt(steps: int, **settings: Any) -> tuple[float, float]:
    """Loss and accuracy on the held-out samples."""
    config = TrainingConfig.model_validate({"steps": steps, **settings})
    torch.manual_seed(config.seed)
    data = load_data(config)
    loss_of = loss_function(config, data).of
    model = build_model(config, data)
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = make_optimizer(config, parameters, [p.grad for p in parameters if p.grad is not None])
    how = {"batch_size": config.batch_size, "accumulate_batches": config.accumulate_batches, "seed": config.seed}
    epochs = (shares(len(data.train), **how, rank=0, size=1, epoch=epoch) for epoch in itertools.count())
    for step, share in enumerate(itertools.islice(itertools.chain.from_iterable(epochs), steps), start=1):
        model.zero_grad(set_to_none=False)
        for batch in share.batches:
            inputs, targets = data.train.batch(batch)
            (loss_of(model(inputs), targets) * len(batch) / share.total).backward()
        optimizer.step(learning_rate_at(config, step, steps))

    inputs, targets = data.test.batch(torch.arange(min(512, len(data.test))))
    with torch.no_grad():
        outputs = model.eval()(inputs)
    right, judged = correct(outputs, targets)
    return loss_of(outputs, targets).item(), right / judged


def test_a_linear_model_tells_the_clusters_apart() -> None:
    loss, accuracy = learnt(320, model="linear", data="clusters", batch_size=80, learning_rate=0.05, momentum=0.0)
    assert loss < 0.25 < math.log(10)
    assert 0.9 < accuracy < 0.98


@pytest.mark.parametrize("model", [{"model": "mlp"}, {"model": "cnn", "channels": (8, 16)}], ids=["mlp", "cnn"])
def test_digits_are_read(model: dict[str, Any]) -> None:
    _, accuracy = learnt(250, **model, data="digits", batch_size=32, accumulate_batches=2, schedule="cosine")
    assert accuracy > 0.95


def test_a_transformer_learns_to_spell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = {"model": "transformer", "layers": 1, "width": 32}
    data = {"data": "stdlib", "context": 32, "text_bytes": 200_000, "batch_size": 16}
    optimizer = {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1, "warmup_steps": 5}
    loss, accuracy = learnt(80, **model, **data, **optimizer)
    # Guessing gives 4.85, knowing how often each character occurs 3.14.
    assert loss < 2.9
    assert accuracy > 0.27
