"""Bytes that no encoder made give `BadPayload` or numbers: never another exception, never much memory."""

import tracemalloc
import zlib

import lz4.block
import lz4.frame
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compression.codecs.numbers import name_of
from ringwide.compression.codecs import lz4 as lz4_codec
from ringwide.compression.codecs.base import Array, BadPayload, Codec
from ringwide.compression.codecs.registry import NAMES, decoder, make

MEBIBYTE = 1 << 20
CODECS = [make(name) for name in NAMES] + [make(name, shuffle=True) for name in ("lz4", "lz4-frame", "zlib")]
each_codec = pytest.mark.parametrize("codec", CODECS, ids=name_of)


def reads(codec: Codec, payload: bytes, out: Array) -> bool:
    """Does it decode? Any other exception fails the test."""
    try:
        codec.decode(memoryview(payload), out)
    except BadPayload:
        return False
    return True


def good_payload(codec: Codec, dtype: str, size: int) -> bytes:
    numbers = np.tile(np.array([0, 1.5, -2, 0.25, 0, 0], dtype), -(-size // 6))[:size]
    payload = codec.encode(numbers)
    return numbers.tobytes() if payload is None else bytes(payload)


@each_codec
@given(
    payload=st.binary(max_size=300),
    count=st.sampled_from([0, 1, 2, 30, 75, 148, 150, 70_000]),
    dtype=st.sampled_from(["float32", "float64"]),
)
@settings(max_examples=80, deadline=None)
def test_any_bytes(codec: Codec, payload: bytes, count: int, dtype: str) -> None:
    reads(codec, payload, np.empty(count, dtype))


@each_codec
@given(
    size=st.sampled_from([40, 300, 1000]),
    dtype=st.sampled_from(["float32", "float64"]),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4),
)
@settings(max_examples=80, deadline=None)
def test_flipped_bits(codec: Codec, size: int, dtype: str, flips: list[tuple[int, int]]) -> None:
    payload = bytearray(good_payload(codec, dtype, size))
    for place, bits in flips:
        payload[place % len(payload)] ^= bits
    reads(codec, bytes(payload), np.empty(size, dtype))


@each_codec
@pytest.mark.parametrize("size", [40, 300, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_payload_of_the_wrong_length(codec: Codec, size: int, dtype: str) -> None:
    payload, out = good_payload(codec, dtype, size), np.empty(size, dtype)
    assert reads(codec, payload, out)
    for shorter in range(0, len(payload), max(1, len(payload) // 60)):
        assert not reads(codec, payload[:shorter], out), f"the first {shorter} of {len(payload)} bytes"
    assert not reads(codec, payload[:-1], out)
    for more in (b"\0", b"\xff", payload):
        assert not reads(codec, payload + more, out)


@each_codec
def test_a_payload_of_another_count(codec: Codec) -> None:
    payload = good_payload(codec, "float32", 1000)
    counts = [0, 1, 10, 70_000] if codec.name == "topk" else [0, 1, 500, 999, 1001, 2000, 70_000]
    for count in counts:
        assert not reads(codec, payload, np.empty(count, np.float32)), count


def lz4_block(size: int) -> bytes:
    return lz4.block.compress(bytes(size), store_size=False)


def lz4_frame(size: int) -> bytes:
    return lz4.frame.compress(bytes(size), block_size=lz4.frame.BLOCKSIZE_MAX256KB, store_size=False)


@pytest.mark.parametrize(
    ("number", "payload"),
    [
        (1, lz4_block(64 * MEBIBYTE)),
        (2, lz4_frame(64 * MEBIBYTE)),
        (2, lz4.frame.compress(bytes(64 * MEBIBYTE))),  # with its size in the header
        (2, lz4.frame.compress(bytes(64 * MEBIBYTE), block_size=lz4.frame.BLOCKSIZE_MAX4MB)),
        (3, zlib.compress(bytes(64 * MEBIBYTE), 9)),
        (7, b"\xff\xff\xff\xff" * 2),
    ],
    ids=["block", "frame", "frame-size", "frame-4MB", "zlib", "topk"],
)
def test_a_bomb_takes_no_memory(number: int, payload: bytes) -> None:
    codec, out = decoder(number), np.empty(1000, np.float32)
    assert codec is not None
    tracemalloc.start()
    try:
        assert not reads(codec, payload, out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEBIBYTE


@pytest.mark.parametrize("number", [1, 2, 3])
def test_decoding_needs_no_more_than_the_numbers_take(number: int) -> None:
    codec, out = decoder(number), np.empty(4 * MEBIBYTE, np.uint8)
    assert codec is not None
    payload = codec.encode(np.zeros_like(out))
    assert payload is not None
    tracemalloc.start()
    try:
        codec.decode(payload, out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * out.nbytes


def frame_with(**options: bool) -> bytes:
    return lz4.frame.compress(bytes(4000), **{"block_size": 5, "store_size": False, **options})


@pytest.mark.parametrize("options", [{"store_size": True}, {"content_checksum": True}, {"block_checksum": True}])
def test_a_frame_with_another_header_is_not_ours(options: dict[str, bool]) -> None:
    codec, out = make("lz4-frame"), np.empty(4000, np.uint8)
    assert reads(codec, frame_with(), out)
    assert not reads(codec, frame_with(**options), out)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1.0, 0.0, 1e-40, 3e38])
def test_int8_scales_are_checked(scale: float) -> None:
    payload = np.array([1, scale], "<f4").tobytes() + bytes(512)
    assert not reads(make("int8"), payload, np.empty(512, np.float32))
    assert reads(make("int8"), np.array([1, 2**-126], "<f4").tobytes() + bytes(512), np.empty(512, np.float32))


@pytest.mark.parametrize(("name", "words"), [("fp16", (0x7C00, 0xFC00, 0x7E00)), ("bf16", (0x7F80, 0xFF80, 0x7FC0))])
def test_a_sixteen_bit_infinity_is_no_payload(name: str, words: tuple[int, ...]) -> None:
    for word in words:
        assert not reads(make(name), np.array([0, word, 0], "<u2").tobytes(), np.empty(3, np.float32))


def packed(kept: int, blocks: list[int], places: list[int], count: int | None = None) -> bytes:
    counts = np.array([kept, *blocks], "<u4").tobytes()
    return counts + np.array(places, "<u2").tobytes() + np.ones(len(places), np.float32).tobytes()


@pytest.mark.parametrize(
    ("payload", "good"),
    [
        (packed(3, [2, 1], [0, 65_535, 4463]), True),
        (packed(3, [1, 2], [65_535, 0, 4463]), True),
        (packed(0, [0, 0], []), True),
        (packed(3, [2, 1], [0, 65_535, 4464]), False),  # beyond the numbers
        (packed(3, [2, 1], [5, 5, 0]), False),
        (packed(3, [2, 1], [6, 5, 0]), False),
        (packed(3, [3, 1], [0, 1, 2]), False),
        (packed(3, [2, 0], [0, 1, 2]), False),
        (packed(3, [4, 2**32 - 1], [0, 1, 2]), False),  # 3, if counts were added in 32 bits
        (packed(4, [3, 1], [0, 1, 2]), False),
        (packed(2, [1, 1], [0, 1, 2]), False),
    ],
)
def test_topk_checks_its_places(payload: bytes, good: bool) -> None:
    assert reads(make("topk"), payload, np.empty(70_000, np.float32)) is good


def test_more_than_a_block_holds_is_no_payload() -> None:
    too_many = np.broadcast_to(np.zeros(1, np.uint8), lz4_codec.LARGEST + 1)  # takes no memory
    assert make("lz4").encode(too_many) is None
    with pytest.raises(BadPayload, match=f"no block holds {too_many.nbytes} bytes"):
        make("lz4").decode(memoryview(b"x"), too_many)
