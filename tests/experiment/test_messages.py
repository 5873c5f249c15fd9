import math

import pytest

from ringwide.experiment.messages import decode, encode
from ringwide.training.progress import Result, Step

STEP = Step(number=3, total=9, epoch=1, loss=0.25)
RESULT = Result(steps=9, loss=0.125, test_accuracy=0.5, seconds=2.0, network_seconds=1.0, fingerprint="ab")


@pytest.mark.parametrize("message", [STEP, RESULT])
def test_a_message_survives_its_line(message: Step | Result) -> None:
    line = encode(message)
    assert "\n" not in line
    assert decode(line) == message


def test_a_loss_that_is_not_a_number_survives() -> None:
    message = decode(encode(Step(number=1, total=1, epoch=0, loss=math.nan)))
    assert isinstance(message, Step)
    assert math.isnan(message.loss)


@pytest.mark.parametrize(
    "line",
    ["", "hello", "5", "null", "[]", "{}", '{"kind": "step"}', '{"kind": "dance"}', '{"kind": []}', encode(STEP)[:-1]],
)
def test_anything_else_is_not_a_message(line: str) -> None:
    assert decode(line) is None


def test_a_field_too_many_is_not_a_message() -> None:
    assert decode(encode(STEP).replace("}", ', "more": 1}')) is None
