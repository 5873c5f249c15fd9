"""Training on several ranks against plain torch on one machine, which computes every step on its whole batch."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from in_memory_ring import Meeting
from torch import Tensor, nn
from torch.nn import functional

from ringwide.training.config import TrainingConfig
from ringwide.training.loop import train
from ringwide.training.progress import Progress, Result, TrainingStep
from ringwide.training.samples import Data, TensorSamples, shares

FEATURES, HIDDEN, CLASSES, IGNORED = 6, 20, 4, -100
WEIGHTS, SOME_ZERO = (0.1, 3.0, 1.0, 0.25), (0.1, 0.0, 1.0, 0.0)
CLOSE = {"rtol": 1e-6, "atol": 1e-9}


def own_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.l1_loss(outputs, targets)


def own_weighted(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    mean = functional.cross_entropy(outputs, targets, weight=weights)
    return mean, weights[targets[targets != IGNORED]].sum()


def binary(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs, targets.sigmoid())


@dataclass(frozen=True)
class Case:
    size: int
    samples: int
    loss: str = "cross_entropy"
    places: int = 0  # targets of a sample; 0: one, which is no list
    class_dim: int = 1
    ignored: float = 0.0
    weights: tuple[float, ...] | None = None
    smoothing: float = 0.0
    probabilities: bool = False
    clip_norm: float | None = None
    batch_size: int = 3
    accumulate: int = 1
    optimizer: str = "sgd"
    overlap: bool = False
    steps: int = 3

    @property
    def has_classes(self) -> bool:
        return self.loss in ("cross_entropy", "own_weighted")

    def config(self) -> TrainingConfig:
        keys: dict[str, Any] = {}
        if self.loss == "cross_entropy":
            keys |= {"class_weights": self.weights} if self.weights else {}
            keys |= {"label_smoothing": self.smoothing} if self.smoothing else {}
            keys |= {"class_dim": self.class_dim} if self.places else {}
        if self.clip_norm is not None:
            keys["clip_norm"] = self.clip_norm
        return TrainingConfig(
            model="own:model",
            data="own:data",
            loss=self.loss if self.loss in ("cross_entropy", "mse") else f"{__name__}:{self.loss}",
            batch_size=self.batch_size,
            accumulate_batches=self.accumulate,
            optimizer=self.optimizer,
            learning_rate=0.1,
            steps=self.steps,
            overlap=self.overlap,
            bucket_bytes=1024,
            **keys,
        )

    @property
    def judges(self) -> bool:
        """Whether the accuracy can be known: with a loss of the user's own nobody says where the classes are."""
        unclear = self.loss == "own_weighted" and self.places == CLASSES
        return self.has_classes and not (self.probabilities and self.loss == "cross_entropy") and not unclear

    @property
    def turns(self) -> bool:
        """Whether the ranks have the classes last. Plain torch always has them in dimension 1."""
        return self.places > 0 and self.loss == "cross_entropy" and self.class_dim == -1

    def data(self) -> Data:
        chance = torch.Generator().manual_seed(self.samples + 100 * self.places)
        train, test = self._samples(self.samples, chance), self._samples(7, chance)
        return Data(train=train, test=test, inputs=(FEATURES,), outputs=CLASSES)

    def _samples(self, count: int, chance: torch.Generator) -> TensorSamples:
        inputs = torch.randn(count, FEATURES, generator=chance, dtype=torch.float64)
        shape = (count, self.places) if self.places else (count,)
        if not self.has_classes or (self.probabilities and self.loss == "cross_entropy"):
            targets = torch.randn(self._outputs(count), generator=chance, dtype=torch.float64)
            return TensorSamples(inputs, targets.softmax(1) if self.has_classes else targets)
        targets = torch.randint(CLASSES, shape, generator=chance)
        targets[torch.rand(shape, generator=chance) < self.ignored] = IGNORED
        return TensorSamples(inputs, targets)

    def _outputs(self, count: int) -> tuple[int, ...]:
        return (count, CLASSES, self.places) if self.places else (count, CLASSES)

    def model(self) -> nn.Module:
        torch.manual_seed(5)
        layers = [nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES * max(1, self.places))]
        if self.places:
            layers.append(nn.Unflatten(1, (CLASSES, self.places)))
        return nn.Sequential(*layers).double()

    def build(self) -> nn.Module:
        """The model as a rank has it."""
        return nn.Sequential(self.model(), Turned()) if self.turns else self.model()

    def rank_data(self) -> Data:
        """The data as a rank has it."""
        data = self.data()
        for part in (data.train, data.test):
            if self.turns and self.probabilities:
                part.labels = part.labels.transpose(1, 2)
        return data

    def plain_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        match self.loss:
            case "cross_entropy":
                weights = torch.tensor(self.weights, dtype=torch.float64) if self.weights else None
                return functional.cross_entropy(outputs, targets, weight=weights, label_smoothing=self.smoothing)
            case "mse":
                return functional.mse_loss(outputs, targets)
            case "own_weighted":
                return own_weighted(outputs, targets)[0]
        return {"own_mean": own_mean, "binary": binary}[self.loss](outputs, targets)


class Turned(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.transpose(1, 2)


# -- the same training twice


@dataclass(frozen=True)
class Trained:
    parameters: list[Tensor]
    losses: list[float]
    norms: list[float]
    test_loss: float
    accuracy: float | None


def on_ranks(case: Case) -> Trained:
    data, models = case.rank_data(), [case.build() for _ in range(case.size)]
    told: list[TrainingStep] = []

    def hear(message: Any) -> None:
        told.extend(message.steps if isinstance(message, Progress) else ())

    async def act() -> list[Result]:
        meeting, handed = Meeting(case.size), iter(models)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ringwide.training.loop.load_data", lambda _: data)
            patch.setattr("ringwide.training.loop.build_model", lambda *_: next(handed))
            return await asyncio.gather(*(train(meeting.ring(rank), case.config(), hear) for rank in range(case.size)))

    results = asyncio.run(act())
    assert len({result.fingerprint for result in results}) == 1
    assert sum(result.bytes_sent for result in results) == sum(result.bytes_received for result in results)
    by_step = [[step for step in told if step.number == number] for number in range(1, case.steps + 1)]
    return Trained(
        parameters=[parameter.detach() for parameter in models[0].parameters()],
        losses=[_mean(steps) for steps in by_step],
        norms=[steps[0].gradient_norm for steps in by_step if steps[0].gradient_norm is not None],
        test_loss=results[0].test_loss,
        accuracy=results[0].test_accuracy,
    )


def _mean(steps: list[TrainingStep]) -> float:
    return sum(step.loss * step.samples for step in steps if step.samples) / sum(step.samples for step in steps)


def in_plain_torch(case: Case) -> Trained:
    data, model, config = case.data(), case.model(), case.config()
    kind: Callable[..., torch.optim.Optimizer] = (
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=config.momentum))
        if case.optimizer == "sgd"
        else (lambda p: torch.optim.Adam(p, lr=0.1))
    )
    optimizer, losses, norms = kind(model.parameters()), [], []
    for indexes, _ in zip(_whole_steps(case), range(case.steps), strict=False):
        inputs, targets = data.train.batch(indexes)
        optimizer.zero_grad()
        loss = case.plain_loss(model(inputs), targets)
        loss.backward()
        losses.append(loss.item())
        if case.clip_norm is not None:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm).item())
        optimizer.step()
    inputs, targets = data.test.batch(torch.arange(len(data.test)))
    with torch.no_grad():
        outputs = model(inputs)
    judged = targets != IGNORED
    right = (outputs.argmax(1) == targets)[judged] if case.judges else torch.zeros(0)
    return Trained(
        parameters=[parameter.detach() for parameter in model.parameters()],
        losses=losses,
        norms=norms,
        test_loss=case.plain_loss(outputs, targets).item(),
        accuracy=right.double().mean().item() if right.numel() else None,
    )


def _whole_steps(case: Case) -> Iterator[Tensor]:
    """Samples of each step, those of all ranks together."""
    epoch = 0
    while True:
        how = {"batch_size": case.batch_size, "accumulate_batches": case.accumulate, "seed": 0, "epoch": epoch}
        ranks = [shares(case.samples, rank=rank, size=case.size, **how) for rank in range(case.size)]
        for step in zip(*ranks, strict=True):
            yield torch.cat([batch for share in step for batch in share.batches])
        epoch += 1


cases = st.builds(
    Case,
    size=st.integers(2, 4),
    samples=st.integers(1, 40),
    loss=st.sampled_from(["cross_entropy", "cross_entropy", "own_weighted", "mse", "own_mean", "binary"]),
    places=st.sampled_from([0, 0, 3, CLASSES]),
    class_dim=st.sampled_from([1, -1]),
    ignored=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    weights=st.sampled_from([None, WEIGHTS, SOME_ZERO]),
    smoothing=st.sampled_from([0.0, 0.1]),
    probabilities=st.sampled_from([False, False, True]),
    clip_norm=st.sampled_from([None, 0.05, 1e6]),
    batch_size=st.integers(1, 5),
    accumulate=st.integers(1, 3),
    optimizer=st.sampled_from(["sgd", "adam"]),
    overlap=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(cases)
@example(Case(size=2, samples=9, ignored=0.5))
@example(Case(size=2, samples=9, ignored=0.9, places=CLASSES, class_dim=-1))
@example(Case(size=3, samples=10, weights=WEIGHTS))
@example(
    Case(size=3, samples=10, weights=WEIGHTS, ignored=0.5, smoothing=0.1, clip_norm=0.05, accumulate=2, overlap=True)
)
@example(Case(size=3, samples=12, weights=SOME_ZERO, batch_size=1))
@example(Case(size=2, samples=2, ignored=1.0, clip_norm=0.05))
def test_training_on_ranks_is_plain_torch_on_the_whole_batch(case: Case) -> None:
    assume(not case.smoothing or case.weights != SOME_ZERO)  # refused
    theirs = in_plain_torch(case)
    # In a step of nothing but classes of weight 0 torch makes everything NaN. Here that step changes nothing.
    assume(all(parameter.isfinite().all() for parameter in theirs.parameters))
    ours = on_ranks(case)
    for mine, other in zip(ours.parameters, theirs.parameters, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-6, nan_ok=True)
    assert ours.norms == pytest.approx(theirs.norms, rel=1e-6)
    assert ours.test_loss == pytest.approx(theirs.test_loss, rel=1e-6, nan_ok=True)
    assert ours.accuracy == (None if theirs.accuracy is None else pytest.approx(theirs.accuracy))
