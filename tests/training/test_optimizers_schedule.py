from typing import Any

import pytest

from ringwide.training.config import TrainingConfig
from ringwide.training.optimizers import learning_rate_at


def rates(last_step: int | None, *, until: int = 10, **settings: Any) -> list[float]:
    config = TrainingConfig.model_validate({"learning_rate": 1.0, "steps": 10, **settings})
    return [round(learning_rate_at(config, step, last_step), 6) for step in range(1, until + 1)]


def test_it_stays_where_it_is() -> None:
    assert rates(10) == rates(None) == [1.0] * 10


def test_it_rises_in_the_warm_up() -> None:
    assert rates(10, warmup_steps=4) == [0.25, 0.5, 0.75] + [1.0] * 7
    assert rates(10, warmup_steps=1) == [1.0] * 10


def test_it_falls_in_a_line_to_the_last_step() -> None:
    assert rates(5, schedule="linear", until=6) == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert rates(5, schedule="linear", final_learning_rate=0.6, until=6) == [1.0, 0.9, 0.8, 0.7, 0.6, 0.6]


def test_it_falls_from_the_end_of_the_warm_up() -> None:
    assert rates(6, schedule="linear", warmup_steps=2, until=7) == [0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_it_falls_as_a_cosine() -> None:
    assert rates(5, schedule="cosine", until=6) == [1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0]
    assert rates(5, schedule="cosine", final_learning_rate=0.5, until=5)[2] == 0.75


def test_decay_steps_come_before_the_last_step() -> None:
    assert rates(10, schedule="linear", decay_steps=3, final_learning_rate=0.2, until=5) == [1.0, 0.6, 0.2, 0.2, 0.2]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_single_step_is_a_full_one(schedule: str) -> None:
    assert rates(1, schedule=schedule, until=2) == [1.0, 0.0]
    assert rates(2, schedule=schedule, warmup_steps=4, until=5) == [0.25, 0.5, 0.75, 1.0, 0.0]


def test_it_may_rise_to_the_end() -> None:
    assert rates(3, schedule="linear", final_learning_rate=2.0, until=4) == [1.0, 1.5, 2.0, 2.0]
