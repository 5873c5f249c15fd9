"""Narrowing is what numpy and torch do, to the bit; of NaNs it keeps what it can; and flushing changes nothing."""

import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.blocks import PIECE
from ringwide.compression.codecs.half import HALF_FORMATS, doubles_of_words, upper_halves

EDGES = np.array(
    [0, 1, 0x7FFFFF, 0x800000, 0x33000000, 0x33000001, 0x387FC000, 0x387FF000, 0x38800000, 0x3F808000], np.uint32
)
ENDS = np.array([0x477FE000, 0x477FEFFF, 0x477FF000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000], np.uint32)


def floats_of(bits: Array) -> Array:
    return bits.astype(np.uint32).view(np.float32)


def any_numbers() -> Array:
    """All exponents, both signs, and everything at which a rule changes; no NaN, and more than a piece."""
    chance = np.random.default_rng(0)
    bits = chance.integers(0, 2**32, size=PIECE + 5000, dtype=np.uint64).astype(np.uint32)
    halves = chance.integers(0, 0x7F80, size=5000, dtype=np.uint64).astype(np.uint32) << 16 | 0x8000  # ties
    small = chance.integers(0x33000000, 0x39000000, size=5000, dtype=np.uint64).astype(np.uint32) & 0xFFFFF000
    given = floats_of(np.concatenate([bits, halves, small, EDGES, ENDS]))
    given = np.concatenate([given, -given])
    return given[~np.isnan(given)]


@pytest.fixture(params=[False, True], ids=["", "flushing"])
def flushing(request: pytest.FixtureRequest) -> Iterator[bool]:
    if not torch.set_flush_denormal(request.param):
        pytest.skip("this processor cannot flush")
    yield request.param
    torch.set_flush_denormal(False)


@pytest.fixture(params=[True, False], ids=["torch", "numpy"], autouse=True)
def with_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With torch, which casts some of it, and as if it had not been imported."""
    if not request.param:
        monkeypatch.delitem(sys.modules, "torch")
    return request.param


def narrowed(dtype: str, given: Array) -> Array:
    """The words of numbers. They are the same in a place of their own and in the place of the numbers."""
    half = HALF_FORMATS[dtype]
    half.narrow_in_place(there := given.copy())
    half.narrow(given.copy(), words := np.empty(given.size, half.carrier))
    assert np.array_equal(words.view(np.uint16), upper_halves(there, np.dtype(np.uint16)))
    return words.view(np.uint16)


def test_float16_is_rounded_as_numpy_does(flushing: bool) -> None:
    given = any_numbers()
    with np.errstate(all="ignore"):
        assert np.array_equal(narrowed("float16", given), given.astype(np.float16).view(np.uint16))


def test_float16_of_numbers_that_need_no_care() -> None:
    given = np.random.default_rng(5).standard_normal(10_000).astype(np.float32)
    assert np.array_equal(narrowed("float16", given), given.astype(np.float16).view(np.uint16))


def test_bfloat16_is_rounded_as_torch_does(flushing: bool) -> None:
    given = any_numbers()
    expected = torch.from_numpy(given).bfloat16().view(torch.int16).numpy()
    assert np.array_equal(narrowed("bfloat16", given), expected.view(np.uint16))


@pytest.mark.parametrize("dtype", HALF_FORMATS)
@pytest.mark.parametrize("writeable", [True, False])
def test_every_word_comes_back_from_float32(dtype: str, writeable: bool, flushing: bool) -> None:
    """All but NaNs that were not quiet: those are now."""
    words = np.tile(np.arange(65_536, dtype=np.uint16), 3)  # more than a piece
    words.flags.writeable = writeable
    half = HALF_FORMATS[dtype]
    half.widen(words.view(half.carrier), numbers := np.empty(words.size, np.float32))
    exponent, quiet = {"bfloat16": (0x7F80, 0x40), "float16": (0x7C00, 0x200)}[dtype]
    is_nan = (words & 0x7FFF) > exponent
    assert np.array_equal(np.isnan(numbers), is_nan)
    assert np.array_equal(narrowed(dtype, numbers), np.where(is_nan, words | quiet, words))


@pytest.mark.parametrize(
    ("dtype", "bits", "expected"),
    [
        ("bfloat16", 0x7F800001, 0x7FC0),  # which said that it is not quiet
        ("bfloat16", 0xFFFFFFFF, 0xFFFF),
        ("bfloat16", 0xFFA10000, 0xFFE1),
        ("float16", 0x7F800001, 0x7E00),
        ("float16", 0xFFFFFFFF, 0xFFFF),
        ("float16", 0x7FC02000, 0x7E01),
    ],
)
def test_a_nan_keeps_its_sign_and_what_there_is_room_for(dtype: str, bits: int, expected: int) -> None:
    given = floats_of(np.array([0x3F800000, bits, 0xBF800000]))
    one = {"bfloat16": 0x3F80, "float16": 0x3C00}[dtype]
    assert narrowed(dtype, given).tolist() == [one, expected, one | 0x8000]


@pytest.mark.parametrize("dtype", HALF_FORMATS)
def test_nothing_is_narrowed_to_nothing(dtype: str) -> None:
    assert narrowed(dtype, np.empty(0, np.float32)).size == 0


def test_every_bfloat16_is_known_as_a_double() -> None:
    words = np.arange(65_536, dtype=np.uint32)
    finite = words & 0x7F80 != 0x7F80
    expected = floats_of(words[finite] << 16).astype(np.float64)
    assert np.array_equal(doubles_of_words()[finite].view(np.uint64), expected.view(np.uint64))
