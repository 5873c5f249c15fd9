"""Segments that codecs are tested with: the ordinary, and the awkward."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from ringwide.compression.codecs.base import Array, Codec
from ringwide.compression.codecs.registry import make

FLOATS = [np.dtype(name) for name in ("float64", "float32", "float16")]
INTEGERS = [np.dtype(name) for name in ("int64", "int32", "int16", "int8", "uint8")]
DTYPES = FLOATS + INTEGERS

LOSSLESS: list[Codec] = [
    make("lz4"),
    make("lz4", acceleration=20),
    make("lz4", shuffle=True),
    make("lz4-frame"),
    make("lz4-frame", level=3),
    make("lz4-frame", shuffle=True),
    make("zlib"),
    make("zlib", level=6),
    make("zlib", shuffle=True),
]
LOSSY: list[Codec] = [make("bf16"), make("fp16"), make("int8"), make("topk"), make("topk", fraction=0.3)]
ENCODERS = LOSSLESS + LOSSY

SIZES = st.one_of(
    st.integers(0, 40),
    st.sampled_from([255, 256, 257, 511, 512, 513, 1000, 4096, 65_535, 65_536, 65_537, 131_073]),
)


def name_of(codec: object) -> str:
    settings = {**vars(codec), **vars(getattr(codec, "codec", codec))}
    kept = {key: value for key, value in settings.items() if key in ("level", "acceleration", "fraction")}
    return getattr(codec, "name", str(codec)) + "".join(f"-{key}{value}" for key, value in kept.items())


@st.composite
def segments(draw: st.DrawFn, dtypes: list[np.dtype[Any]], finite: bool = False) -> Array:
    """Any segment of one of these dtypes."""
    dtype = draw(st.sampled_from(dtypes))
    size = draw(SIZES)
    if dtype.kind != "f":
        return integers(draw, dtype, size)
    fill: Array = draw(st.sampled_from(FILLS))(np.random.default_rng(draw(st.integers(0, 1000))), dtype, size)
    if size:
        for value in draw(st.lists(st.sampled_from(awkward(dtype, finite)), max_size=3)):
            fill[draw(st.integers(0, size - 1))] = value
    return fill


def integers(draw: st.DrawFn, dtype: np.dtype[Any], size: int) -> Array:
    limits = np.iinfo(dtype)
    width = draw(st.sampled_from([1, 3, 100, limits.max]))
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    return random.integers(max(limits.min, -width), width, size, dtype)


def awkward(dtype: np.dtype[Any], finite: bool) -> list[float]:
    limits = np.finfo(dtype)
    values = [
        -0.0,
        0.0,
        1.0,
        float(limits.max),
        float(limits.min),
        float(limits.smallest_subnormal),
        float(limits.tiny),
    ]
    values += [65519.0, -65520.0, 1e-8, 3.3895e38, -3.4e38, 1e-42, 1e30] if limits.bits > 16 else []
    values += [1e300, 5e-324, float(np.finfo(np.float32).max) * (1 + 1e-9)] if limits.bits == 64 else []
    return values if finite else [*values, float("nan"), float("inf"), float("-inf")]


def gaussian(random: np.random.Generator, dtype: np.dtype[Any], size: int) -> Array:
    return random.standard_normal(size).astype(dtype)


def mostly_zero(random: np.random.Generator, dtype: np.dtype[Any], size: int) -> Array:
    return (random.standard_normal(size) * (random.random(size) < 0.1)).astype(dtype)


def all_zero(random: np.random.Generator, dtype: np.dtype[Any], size: int) -> Array:
    return np.zeros(size, dtype)


def all_equal(random: np.random.Generator, dtype: np.dtype[Any], size: int) -> Array:
    return np.full(size, -0.375, dtype)


def few_values(random: np.random.Generator, dtype: np.dtype[Any], size: int) -> Array:
    return random.integers(-2, 3, size).astype(dtype)


def denormal(random: np.random.Generator, dtype: np.dtype[Any], size: int) -> Array:
    return np.asarray(random.integers(-40, 40, size).astype(dtype) * np.finfo(dtype).smallest_subnormal)


def all_scales(random: np.random.Generator, dtype: np.dtype[Any], size: int) -> Array:
    """Every power of two that a float16 or a float32 has, about."""
    powers = random.integers(-24, 15, size) if dtype.itemsize == 2 else random.integers(-150, 127, size)
    return np.ldexp(random.standard_normal(size), powers).clip(-6e4, 6e4).astype(dtype)


FILLS = [gaussian, mostly_zero, all_zero, all_equal, few_values, denormal, all_scales]


def same_bits(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()
