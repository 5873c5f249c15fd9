"""The two 16-bit formats give the bits that numpy and torch give."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ringwide.compression.codecs.base import Array, Codec
from ringwide.compression.codecs.registry import make

WORDS = np.arange(65_536, dtype=np.uint16)
ANY_FLOAT = st.floats(width=32, allow_nan=False, allow_infinity=False)


def words_of(codec: Codec, numbers: Array) -> Array:
    payload = codec.encode(numbers)
    assert payload is not None
    return np.frombuffer(payload, np.uint16)


def neighbourhood(numbers: Array) -> Array:
    """These numbers, those half way between them, and the next float32 on either side of each."""
    numbers = np.unique(numbers)
    halfway = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(np.float32)
    points = np.concatenate([numbers, halfway])
    near = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([points, *near, [-0.0]]).astype(np.float32)


def as_halves(numbers: Array) -> Array:
    return numbers.astype(np.float16).view(np.uint16)


def as_bfloat16(numbers: Array) -> Array:
    return torch.from_numpy(numbers).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def test_every_half_is_read() -> None:
    halves = WORDS.view(np.float16)
    finite = halves[np.isfinite(halves)]
    out = np.empty(finite.size, np.float32)
    make("fp16").decode(memoryview(finite.tobytes()), out)
    assert out.tobytes() == finite.astype(np.float32).tobytes()


def test_every_bfloat16_is_read() -> None:
    numbers = (WORDS.astype(np.uint32) << 16).view(np.float32)
    finite = numbers[np.isfinite(numbers)]
    out = np.empty(finite.size, np.float32)
    make("bf16").decode(memoryview(WORDS[np.isfinite(numbers)].tobytes()), out)
    assert out.tobytes() == finite.tobytes()


def test_around_every_half() -> None:
    halves = WORDS.view(np.float16)
    numbers = neighbourhood(halves[np.isfinite(halves)].astype(np.float32))
    assert np.abs(numbers).max() > 65504
    assert (words_of(make("fp16"), numbers) == as_halves(numbers)).all()


def test_around_every_bfloat16() -> None:
    all_numbers = (WORDS.astype(np.uint32) << 16).view(np.float32)
    numbers = neighbourhood(all_numbers[np.isfinite(all_numbers)])
    assert (words_of(make("bf16"), numbers) == as_bfloat16(numbers)).all()


@given(st.lists(st.floats(-65519, 65519, width=32), min_size=1))
@settings(deadline=None)
def test_halves_of_any_number(values: list[float]) -> None:
    numbers = np.array(values, np.float32)
    assert (words_of(make("fp16"), numbers) == as_halves(numbers)).all()


@given(st.lists(ANY_FLOAT.filter(lambda number: abs(number) < 3.39e38), min_size=1))
@settings(deadline=None)
def test_bfloat16_of_any_number(values: list[float]) -> None:
    numbers = np.array(values, np.float32)
    assert (words_of(make("bf16"), numbers) == as_bfloat16(numbers)).all()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("name", "largest"), [("fp16", 65520.0), ("bf16", 3.3961775292304957e38)])
def test_what_would_round_to_infinity_travels_raw(name: str, largest: float, sign: int) -> None:
    beyond = np.array([0, sign * largest], np.float32)
    within = np.nextafter(beyond, np.float32(0))
    assert make(name).encode(beyond) is None
    assert make(name).encode(within) is not None


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_a_processor_that_takes_subnormals_for_zero_changes_no_number(name: str) -> None:
    """torch can set that, for the whole thread. 2^-20 is subnormal among halves, but an ordinary float32."""
    numbers = np.array([2.0**-20, -(2.0**-24), 3 * 2.0**-24, 1.0], np.float32)
    out = np.empty_like(numbers)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor always keeps them")
    try:
        payload = make(name).encode(numbers)
        assert payload is not None
        make(name).decode(payload, out)
    finally:
        torch.set_flush_denormal(False)
    assert out.tolist() == numbers.tolist()
