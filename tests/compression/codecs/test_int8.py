import numpy as np
import pytest

from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.int8 import BLOCK, packed_size
from ringwide.compression.codecs.registry import make

INT8 = make("int8")


def through(numbers: Array) -> Array:
    payload = INT8.encode(numbers)
    assert payload is not None
    out = np.empty_like(numbers)
    INT8.decode(payload, out)
    return out


def test_integers_up_to_127_survive() -> None:
    numbers = np.tile(np.arange(-127, 128, dtype=np.float32), 600)
    numbers[::BLOCK] = 127  # in every block, so that every scale is 1
    assert (through(numbers) == numbers).all()


def test_an_outlier_costs_only_its_own_block() -> None:
    numbers = np.random.default_rng(1).standard_normal(5 * BLOCK).astype(np.float32)
    numbers[2 * BLOCK + 7] = 1e6
    errors = np.abs(through(numbers) - numbers)
    assert errors[2 * BLOCK : 3 * BLOCK].max() > 0.5
    assert errors[: 2 * BLOCK].max() < 0.02
    assert errors[3 * BLOCK :].max() < 0.02


def test_a_quarter_of_the_bytes_nearly() -> None:
    payload = INT8.encode(np.ones(1 << 18, np.float32))
    assert payload is not None
    assert (1 << 20) / len(payload) > 3.9


def test_the_bound_is_half_a_step() -> None:
    """Not much more than what is really lost."""
    numbers = np.random.default_rng(2).standard_normal(100_000).astype(np.float32)
    assert np.abs(through(numbers) - numbers).max() > 0.99 * INT8.error_bound(numbers).min()
    assert INT8.error_bound(numbers).max() < 0.51 * 5 / 127


@pytest.mark.parametrize("value", [1e-45, 1e-42, 1e-38, -1.1754944e-38])
def test_tiny_numbers(value: float) -> None:
    numbers = np.full(1000, value, np.float32)
    assert np.abs(through(numbers) - numbers).max() <= 2.0**-126
    assert INT8.error_bound(numbers).max() <= 2.0**-126


def test_zeros_stay_zeros() -> None:
    assert not through(np.zeros(1000, np.float32)).any()


def test_the_largest_numbers_travel_raw() -> None:
    largest = np.finfo(np.float32).max
    assert INT8.encode(np.full(300, largest, np.float32)) is None
    assert np.isfinite(through(np.full(300, -largest / 2, np.float32))).all()


def test_one_number_is_smaller_raw() -> None:
    assert packed_size(1) == 5
    assert INT8.encode(np.ones(1, np.float32)) is None
    assert INT8.encode(np.ones(1, np.float64)) is not None
