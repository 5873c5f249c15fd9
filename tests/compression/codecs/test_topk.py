import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.registry import make


def through(numbers: Array, fraction: float) -> Array:
    codec = make("topk", fraction=fraction)
    payload = codec.encode(numbers)
    assert payload is not None
    out = np.full_like(numbers, 9)
    codec.decode(payload, out)
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(
    count=st.sampled_from([30, 1000, 65_535, 65_536, 65_537, 200_000]),
    fraction=st.sampled_from([1e-6, 0.01, 0.1, 0.5]),
    distinct=st.sampled_from([3, 50, 10**6]),
    seed=st.integers(0, 100),
)
@settings(max_examples=25, deadline=None)
def test_the_largest_are_kept_and_of_equals_the_first(
    dtype: str, count: int, fraction: float, distinct: int, seed: int
) -> None:
    numbers = np.random.default_rng(seed).integers(-distinct, distinct, count).astype(dtype) / 7
    kept = max(1, math.ceil(fraction * count))
    order = np.argsort(-np.abs(numbers), kind="stable")
    expected = np.zeros_like(numbers)
    expected[order[:kept]] = numbers[order[:kept]]
    assert through(numbers, fraction).tobytes() == (expected + 0.0).tobytes()


def test_a_sample_that_misleads_changes_nothing() -> None:
    for step in range(2):
        numbers = np.random.default_rng(step).standard_normal(100_000).astype(np.float32)
        numbers[step::61] *= 1000  # those that are sampled, then others only
        expected = np.sort(np.abs(numbers))[-3000:]
        result = through(numbers, 0.03)
        assert np.sort(np.abs(result[result != 0])).tolist() == expected.tolist()


def test_one_of_a_few_numbers() -> None:
    assert through(np.array([1, -5, 3, 2, 0], np.float32), 0.01).tolist() == [0, -5, 0, 0, 0]


def test_all_equal() -> None:
    assert through(np.full(100, -2.0), 0.03).tolist() == [-2.0] * 3 + [0] * 97


def test_the_bound_is_what_is_dropped() -> None:
    bound = make("topk", fraction=0.2).error_bound(np.array([1, -5, 3, 2, 0, 0, 4, 0, 0, 0.5]))
    assert bound.tolist() == [1, 0, 3, 2, 0, 0, 0, 0, 0, 0.5]


def test_everything_would_not_be_smaller() -> None:
    assert make("topk", fraction=1.0).encode(np.ones(1000, np.float32)) is None


def test_a_hundredth_by_default() -> None:
    payload = make("topk").encode(np.arange(100_000, dtype=np.float32))
    assert payload is not None
    assert len(payload) == 4 + 2 * 4 + 1000 * (2 + 4)
