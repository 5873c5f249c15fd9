import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.samples import Course, Position, SampleShare

ENOUGH = 40


def course(samples: int = 23, rank: int = 0, size: int = 2, **settings: Any) -> Course:
    config = TrainingConfig(**{"batch_size": 3, **settings})
    return Course(config, samples=samples, rank=rank, size=size)


def listed(course: Course, start: Position) -> list[tuple[Position, tuple[list[int], ...], int]]:
    return [told(reached, share) for reached, share in itertools.islice(course.after(start), ENOUGH)]


def told(reached: Position, share: SampleShare) -> tuple[Position, tuple[list[int], ...], int]:
    return reached, tuple(batch.tolist() for batch in share.batches), share.total


@settings(max_examples=30)
@given(
    st.integers(1, 40), st.integers(1, 3), st.integers(1, 3), st.sampled_from([{"epochs": 3}, {"steps": 11}, {}, None])
)
def test_going_on_from_any_position_is_exactly_the_rest(
    samples: int, size: int, accumulate: int, end: dict[str, int] | None
) -> None:
    ends = {"seconds": 1.0} if end is None else end
    each = course(samples, size - 1, size, accumulate_batches=accumulate, seed=5, **ends)
    whole = listed(each, Position())
    assert [reached.step for reached, _, _ in whole] == list(range(1, len(whole) + 1))
    for made, (reached, _, _) in enumerate(whole, start=1):
        rest = listed(each, reached)
        assert rest[: ENOUGH - made] == whole[made:]
        assert each.last_step is None or len(rest) == max(0, each.last_step - made) or len(rest) == ENOUGH


def test_every_epoch_has_every_sample_once_over_all_ranks() -> None:
    seen: dict[int, list[int]] = {}
    for rank in range(3):
        for reached, batches, _ in listed(course(rank=rank, size=3, epochs=2), Position()):
            seen.setdefault(reached.epoch, []).extend(itertools.chain(*batches))
    assert [sorted(indexes) for indexes in seen.values()] == [list(range(23))] * 2
    assert seen[0] != seen[1]


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        ({"steps": 7}, 7),
        ({"epochs": 2}, 8),
        ({"steps": 7, "epochs": 2}, 7),
        ({"steps": 9, "epochs": 2}, 8),
        ({"seconds": 1.0}, None),
        ({"seconds": 1.0, "steps": 7}, 7),
        ({}, 40),
    ],
)
def test_it_ends_with_whatever_comes_first(settings: dict[str, Any], last: int | None) -> None:
    each = course(**settings)
    assert (each.steps_per_epoch, each.last_step) == (4, last)
    assert len(listed(each, Position())) == (last or ENOUGH)


def test_beyond_its_end_there_is_nothing() -> None:
    assert listed(course(steps=3), Position(step=5, epoch=1, step_in_epoch=1)) == []


def test_the_smaller_step_is_left_out_of_every_epoch_if_asked() -> None:
    each = course(23, epochs=2, drop_last=True)  # steps of 6: 5 samples are left
    assert (each.steps_per_epoch, each.last_step) == (3, 6)
    reached = listed(each, Position())
    assert [(at.epoch, at.step_in_epoch, total) for at, _, total in reached] == [
        (epoch, step, 6) for epoch in range(2) for step in (1, 2, 3)
    ]
    assert {len(batch) for _, batches, _ in reached for batch in batches} == {3}
    assert listed(each, Position(4, 1, 1)) == reached[4:]


def test_without_a_whole_step_nothing_can_be_left_out() -> None:
    with pytest.raises(ConfigError, match=r"drop_last: true: a whole step needs 24 samples .* but there are 23"):
        course(23, accumulate_batches=4, drop_last=True)
