import math
from typing import Any

import pytest
from in_memory_ring import CodecTally, Link, Statistics

from ringwide.training.progress import Progress, TrainingStep
from ringwide.training.step_journal import StepJournal, Traffic


class Wire:
    def __init__(self) -> None:
        self.sent, self.received, self.raw, self.wire, self.codec_seconds = 1000, 500, 4000, 1000, 3.0

    def __call__(self) -> Statistics:
        link = Link(1, self.sent, (CodecTally(self.raw, self.wire),))
        return Statistics((link,), self.received, self.codec_seconds)


def step(number: int, *, epoch: int = 0, loss: float = 1.0, samples: int = 4) -> TrainingStep:
    return TrainingStep(
        number=number,
        epoch=epoch,
        seconds=0.0,
        loss=loss,
        samples=samples,
        learning_rate=0.1,
        network_seconds=0.0,
        hidden_seconds=0.0,
    )


@pytest.fixture
def told() -> list[Any]:
    return []


def test_every_step_is_told_once_and_silence_is_not(told: list[Any]) -> None:
    wire = Wire()
    journal = StepJournal(told.append, wire)
    journal.tell()
    assert told == []
    journal.enter(step(1), batches=1)
    journal.enter(step(2), batches=1)
    wire.sent, wire.received = 1100, 530
    journal.tell()
    journal.tell()
    journal.enter(step(3), batches=1)
    wire.sent = 1200
    journal.tell()
    assert told == [
        Progress(steps=(step(1), step(2)), bytes_sent=100, bytes_received=30),
        Progress(steps=(step(3),), bytes_sent=200, bytes_received=30),
    ]


def test_what_was_done_is_summed_and_only_what_training_sent_counts(told: list[Any]) -> None:
    wire = Wire()
    journal = StepJournal(told.append, wire)
    journal.enter(step(1, samples=8), batches=2)
    journal.enter(step(2, samples=5), batches=1)
    wire.sent, wire.received = 1700, 900
    assert (journal.steps, journal.batches, journal.samples) == (2, 3, 13)
    assert journal.traffic() == Traffic({1: 700}, bytes_received=400)


def test_the_codecs_work_before_training_and_in_its_rests_does_not_count(told: list[Any]) -> None:
    wire = Wire()
    journal = StepJournal(told.append, wire)
    assert journal.traffic().compression_ratio == 1.0
    wire.raw, wire.wire, wire.codec_seconds = 4600, 1300, 3.5
    with journal.paused():
        wire.sent, wire.received, wire.raw, wire.wire, wire.codec_seconds = 5000, 5000, 9600, 6300, 9.5
    wire.sent, wire.raw, wire.wire, wire.codec_seconds = 5100, 9700, 6350, 9.75
    assert journal.traffic() == Traffic({1: 100}, 0, raw_bytes=700, wire_bytes=350, codec_seconds=0.75)
    assert journal.traffic().compression_ratio == 2.0


def test_the_loss_is_the_mean_over_the_samples_of_the_last_steps(told: list[Any]) -> None:
    journal = StepJournal(told.append, Wire())
    assert math.isnan(journal.loss)
    journal.enter(step(1, loss=9.0), batches=1)
    assert journal.loss == 9
    for number in range(2, 49):
        journal.enter(step(number, loss=1.0, samples=0), batches=1)
    journal.enter(step(49, loss=1.0, samples=3), batches=1)
    assert journal.loss == pytest.approx((4 * 9 + 3 * 1) / 7)
    journal.enter(step(50, loss=2.0, samples=1), batches=1)
    journal.enter(step(51, loss=0.0, samples=0), batches=1)
    assert journal.loss == pytest.approx(1.25)  # the first of them is forgotten


def test_without_samples_there_is_no_loss(told: list[Any]) -> None:
    journal = StepJournal(told.append, Wire())
    journal.enter(step(1, loss=0.0, samples=0), batches=0)
    assert math.isnan(journal.loss)
