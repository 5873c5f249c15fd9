import numpy as np
import pytest

from compression.codecs.numbers import same_bits
from ringwide.compression.codecs.base import Array, Raw
from ringwide.compression.codecs.registry import make
from ringwide.compression.codecs.shuffle import Shuffled


class Verbatim(Raw):
    """Shows what a shuffled codec is given."""

    def encode(self, numbers: Array) -> memoryview | None:
        return memoryview(numbers.tobytes())


def test_first_all_lowest_bytes() -> None:
    numbers = np.array([0x0A0B0C0D, 0x1A1B1C1D, 0x2A2B2C2D], np.uint32)
    payload = Shuffled(Verbatim()).encode(numbers)
    assert payload is not None
    assert bytes(payload).hex(" ", 3) == "0d1d2d 0c1c2c 0b1b2b 0a1a2a"


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32", "float64", "complex128", "S3"])
@pytest.mark.parametrize("size", [1, 2, 1000, 131_073])
def test_any_width(dtype: str, size: int) -> None:
    width = np.dtype(dtype).itemsize
    numbers = np.frombuffer(np.random.default_rng(size).bytes(size * width), dtype)
    codec = Shuffled(Verbatim())
    payload = codec.encode(numbers)
    assert payload is not None
    planes = np.frombuffer(payload, np.uint8).reshape(width, size)
    assert same_bits(planes.T.copy().reshape(-1), np.frombuffer(numbers.tobytes(), np.uint8))
    out = np.zeros(size, dtype)
    codec.decode(payload, out)
    assert same_bits(out, numbers)


def test_it_helps_where_exponents_are_alike() -> None:
    numbers = np.random.default_rng(1).standard_normal(10_000).astype(np.float32)
    assert make("lz4").encode(numbers) is None
    assert make("lz4", shuffle=True).encode(numbers) is not None
