import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringwide.compression.autotune import Sampling, shrinks, spread
from ringwide.compression.codecs.registry import make

RANDOM = np.random.default_rng(3)
NOISE = RANDOM.standard_normal(1 << 18).astype(np.float32)
SPARSE = np.where(RANDOM.random(NOISE.size) < 0.9, 0, NOISE).astype(np.float32)


@pytest.mark.parametrize("name", ["lz4", "lz4-frame", "zlib"])
def test_what_shrinks_is_seen(name: str) -> None:
    assert shrinks(make(name), SPARSE)
    assert not shrinks(make(name), np.frombuffer(RANDOM.bytes(1 << 20), np.float32))


def test_gaussian_numbers_do_not_shrink_with_lz4() -> None:
    assert not shrinks(make("lz4"), NOISE)


def test_numbers_are_not_only_looked_at_where_they_begin() -> None:
    half_empty = NOISE.copy()
    half_empty[: NOISE.size // 2] = 0
    assert shrinks(make("lz4"), half_empty)
    assert not shrinks(make("lz4"), half_empty, Sampling(8, 4096, 0.3))
    assert shrinks(make("lz4"), half_empty, Sampling(1, 4096, 0.3))


@pytest.mark.parametrize("name", ["lz4", "zlib"])
def test_who_asks_for_a_shuffle_gets_it_for_dense_floats(name: str) -> None:
    assert shrinks(make(name, shuffle=True), NOISE)
    assert not shrinks(make(name), NOISE)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_few_numbers(count: int) -> None:
    assert not shrinks(make("lz4"), NOISE[:count])


@given(size=st.integers(0, 300), spots=st.integers(1, 9), length=st.integers(1, 40))
def test_spots_are_apart_and_reach_both_ends(size: int, spots: int, length: int) -> None:
    numbers = np.arange(size)
    found = list(spread(numbers, spots, length))
    together = np.concatenate(found)
    assert (np.diff(together) > 0).all()
    assert together.size == min(size, spots * length)
    if size and spots > 1:
        assert together[0] == 0
        assert together[-1] == size - 1
