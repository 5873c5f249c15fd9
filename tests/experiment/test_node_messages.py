import json
import math
from dataclasses import replace
from typing import Any

import pytest

from ringwide.experiment.node_messages import Message, decode, encode
from ringwide.training.progress import Evaluation, Progress, Result, TrainingPlan, TrainingStep

STEP = TrainingStep(
    number=3,
    epoch=1,
    seconds=0.125,
    loss=0.25,
    samples=16,
    learning_rate=0.1,
    network_seconds=0.01,
    hidden_seconds=0.0,
)
PROGRESS = Progress(steps=(STEP, replace(STEP, number=4, loss=0.5)), bytes_sent=1000, bytes_received=999)
PLAN = TrainingPlan(
    parameters=10,
    gradient_bytes=40,
    buckets=1,
    overlapped=False,
    samples=100,
    test_samples=20,
    steps_per_epoch=5,
    first_step=1,
    last_step=None,
    seconds=30.0,
)
RESULT = Result(
    steps=9,
    batches=9,
    epochs=1.5,
    samples=144,
    loss=0.125,
    test_loss=0.5,
    test_accuracy=None,
    seconds=2.0,
    network_seconds=1.0,
    hidden_seconds=0.5,
    bytes_sent=10,
    bytes_received=10,
    fingerprint="ab",
)
CLIPPED = replace(PROGRESS, steps=tuple(replace(step, gradient_norm=0.5) for step in PROGRESS.steps))
MESSAGES = [PLAN, PROGRESS, CLIPPED, Evaluation(step=3, seconds=1.0, loss=0.5, accuracy=0.75), RESULT]


def columns(**changes: Any) -> str:
    """The line of PROGRESS, with other steps."""
    told = json.loads(encode(PROGRESS))
    told["steps"].update(changes)
    return json.dumps(told)


@pytest.mark.parametrize(
    "message", [*MESSAGES, replace(PROGRESS, steps=())], ids=lambda message: type(message).__name__
)
def test_a_message_survives_its_line(message: Message) -> None:
    line = encode(message)
    assert "\n" not in line
    assert decode(line) == message


def test_a_step_number_keeps_all_its_digits() -> None:
    message = replace(PROGRESS, steps=(replace(STEP, number=123_456_789),))
    assert decode(encode(message)) == message


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_survives(loss: float) -> None:
    message = decode(encode(replace(PROGRESS, steps=(replace(STEP, loss=loss),))))
    assert isinstance(message, Progress)
    assert repr(message.steps[0].loss) == repr(loss)


def test_many_steps_make_a_short_line_with_seven_digits() -> None:
    steps = tuple(replace(STEP, number=number, loss=math.pi / number) for number in range(1, 101))
    line = encode(replace(PROGRESS, steps=steps))
    assert len(line) < 100 * 50
    message = decode(line)
    assert isinstance(message, Progress)
    assert [step.loss for step in message.steps] == pytest.approx([step.loss for step in steps], rel=5e-7)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "5",
        "null",
        "[]",
        "{}",
        '{"kind": "progress"}',
        '{"kind": "dance"}',
        '{"kind": []}',
        "[" * 100_000,
        encode(PROGRESS)[:-1],
        columns(loss=[0.5]),
        columns(more=[1, 2]),
        columns(loss=None),
        encode(RESULT).replace("}", ', "more": 1}'),
    ],
)
def test_anything_else_is_not_a_message(line: str) -> None:
    assert decode(line) is None
