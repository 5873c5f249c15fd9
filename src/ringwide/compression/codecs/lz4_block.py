"""LZ4 blocks: the fastest, for numbers with many repeats, such as zeros."""

import lz4.block  # type: ignore[import-untyped]

from ringwide.compression.codecs.base import Array, BadPayload, Lossless, bytes_of, fill, if_smaller

LARGEST = 0x7E000000  # LZ4_MAX_INPUT_SIZE: no block holds more bytes


class Lz4Block(Lossless):
    """A bare block: the frame around it says how long it is, and the plan how long it will be."""

    name = "lz4"
    number = 1

    def __init__(self, acceleration: int = 1) -> None:
        self.acceleration = acceleration

    def encode(self, numbers: Array) -> memoryview | None:
        if not 0 < numbers.nbytes <= LARGEST:
            return None
        payload = lz4.block.compress(bytes_of(numbers), mode="fast", acceleration=self.acceleration, store_size=False)
        return if_smaller(payload, numbers)

    def decode(self, payload: memoryview, out: Array) -> None:
        if out.nbytes > LARGEST:
            raise BadPayload(f"no block holds {out.nbytes} bytes")
        try:
            raw = lz4.block.decompress(payload, uncompressed_size=out.nbytes)
        except (lz4.block.LZ4BlockError, ValueError) as error:
            raise BadPayload(f"not an LZ4 block of {out.nbytes} bytes: {error}") from error
        fill(out, raw)
