"""What every codec promises, for any segment."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compression.codecs.numbers import DTYPES, ENCODERS, FLOATS, LOSSLESS, LOSSY, name_of, same_bits, segments
from ringwide.compression.codecs.base import Array, BadPayload, Codec
from ringwide.compression.codecs.registry import decoder

WIDE_FLOATS = FLOATS[:2]

each_encoder = pytest.mark.parametrize("codec", ENCODERS, ids=name_of)
each_lossless = pytest.mark.parametrize("codec", LOSSLESS, ids=name_of)
each_lossy = pytest.mark.parametrize("codec", LOSSY, ids=name_of)
few = settings(max_examples=25, deadline=None)


def dtypes_of(codec: Codec) -> list[np.dtype]:
    return [dtype for dtype in DTYPES if codec.carries(dtype)]


def decoded(codec: Codec, payload: memoryview, like: Array) -> Array:
    """What a reader makes of it, who knows only the number on the wire."""
    reader = decoder(codec.number)
    assert reader is not None
    out = np.full(like.size, 7, like.dtype)
    reader.decode(payload, out)
    return out


@each_lossless
def test_a_lossless_codec_carries_every_dtype(codec: Codec) -> None:
    assert not codec.lossy
    assert dtypes_of(codec) == DTYPES


@each_lossy
def test_a_lossy_codec_carries_the_wide_floats(codec: Codec) -> None:
    assert codec.lossy
    assert dtypes_of(codec) == WIDE_FLOATS


@each_lossless
@given(numbers=segments(DTYPES))
@few
def test_lossless_round_trip(codec: Codec, numbers: Array) -> None:
    payload = codec.encode(numbers)
    if payload is not None:
        assert same_bits(decoded(codec, payload, numbers), numbers)
    assert not codec.error_bound(numbers).any()


@each_lossy
@given(numbers=segments(WIDE_FLOATS, finite=True))
@settings(max_examples=80, deadline=None)
def test_an_error_is_never_larger_than_promised(codec: Codec, numbers: Array) -> None:
    payload = codec.encode(numbers)
    bound = codec.error_bound(numbers)
    assert bound.shape == numbers.shape
    if payload is None:
        assert not bound.any()
        return
    result = decoded(codec, payload, numbers)
    with np.errstate(all="ignore"):
        errors = np.abs(result.astype(np.float64) - numbers.astype(np.float64))
    assert np.isfinite(result).all()
    assert (errors <= bound).all()


@each_lossy
@given(numbers=segments(WIDE_FLOATS, finite=True), value=st.sampled_from([np.nan, np.inf, -np.inf]), data=st.data())
@few
def test_a_segment_that_is_not_finite_travels_raw(
    codec: Codec, numbers: Array, value: float, data: st.DataObject
) -> None:
    if numbers.size:
        numbers[data.draw(st.integers(0, numbers.size - 1))] = value
        assert codec.encode(numbers) is None
        assert not codec.error_bound(numbers).any()


@each_lossy
@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001, 0x7FC00000, 0xFFC00000])
def test_every_kind_of_nan_is_seen(codec: Codec, bits: int) -> None:
    numbers = np.linspace(-1, 1, 1000, dtype=np.float32)
    numbers.view(np.uint32)[567] = bits
    assert codec.encode(numbers) is None


@each_encoder
@given(data=st.data())
@few
def test_a_payload_is_smaller_than_the_numbers_and_than_its_bound(codec: Codec, data: st.DataObject) -> None:
    numbers = data.draw(segments(dtypes_of(codec)))
    payload = codec.encode(numbers)
    if payload is not None:
        assert payload.format == "B"
        assert len(payload) <= codec.size_bound(numbers.size, numbers.itemsize)
        assert len(payload) < numbers.nbytes


@each_encoder
@given(data=st.data())
@few
def test_encoding_only_reads_and_is_deterministic(codec: Codec, data: st.DataObject) -> None:
    numbers = data.draw(segments(dtypes_of(codec)))
    before = numbers.tobytes()
    numbers.flags.writeable = False
    first, second = codec.encode(numbers), codec.encode(numbers)
    assert first == second
    assert numbers.tobytes() == before


@each_encoder
def test_a_payload_is_memory_of_its_own(codec: Codec) -> None:
    one = np.tile(np.linspace(-1, 1, 500, dtype=np.float32), 400)
    payload = codec.encode(one)
    assert payload is not None
    kept = bytes(payload)
    codec.encode(one[::-1].copy())
    codec.decode(memoryview(kept), np.empty_like(one))
    assert payload == kept


@each_encoder
def test_threads_do_not_disturb_each_other(codec: Codec) -> None:
    random = np.random.default_rng(5)
    several = [np.round(random.standard_normal(70_000), 1).astype(dtype) for dtype in WIDE_FLOATS * 4]
    alone = [codec.encode(numbers) for numbers in several]

    def both_ways(number: int) -> tuple[memoryview | None, bytes]:
        payload = codec.encode(several[number])
        assert payload is not None
        return payload, decoded(codec, payload, several[number]).tobytes()

    expected = [decoded(codec, payload, numbers).tobytes() for payload, numbers in zip(alone, several, strict=True)]
    with ThreadPoolExecutor(4) as threads:
        for number, (payload, result) in enumerate(threads.map(both_ways, list(range(len(several))))):
            assert payload == alone[number]
            assert result == expected[number]


@each_encoder
def test_nothing_is_not_encoded(codec: Codec) -> None:
    empty = np.empty(0, np.float32)
    assert codec.encode(empty) is None
    assert codec.error_bound(empty).size == 0


@each_encoder
def test_settings_of_numpy_do_not_matter(codec: Codec) -> None:
    """A program may have told numpy to raise."""
    numbers = np.tile(np.array([1e-45, 3e38, 1, 0, -0.0, 1e-39], np.float64), 500)
    with np.errstate(all="raise"):
        for segment in (numbers, np.full(3000, 1e300), np.full(3000, np.nan), np.full(3000, 1e-320)):
            payload = codec.encode(segment)
            codec.error_bound(segment)
            if payload is not None:
                decoded(codec, payload, segment)


def test_no_codec_copies() -> None:
    raw = decoder(0)
    assert raw is not None
    numbers = np.arange(5, dtype=np.int16)
    assert raw.encode(numbers) is None
    out = np.zeros(5, np.int16)
    raw.decode(memoryview(numbers.tobytes()), out)
    assert same_bits(out, numbers)
    assert raw.size_bound(5, 2) == 10
    for size in (0, 9, 11):
        with pytest.raises(BadPayload, match=f"{size} bytes"):
            raw.decode(memoryview(bytes(size)), out)
