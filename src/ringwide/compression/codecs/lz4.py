"""LZ4: blocks are fastest, for numbers with many repeats such as zeros; frames have levels that compress more."""

import lz4.block  # type: ignore[import-untyped]
import lz4.frame  # type: ignore[import-untyped]

from ringwide.compression.codecs.base import Array, BadPayload, Lossless, bytes_of, fill, if_smaller

LARGEST = 0x7E000000  # LZ4_MAX_INPUT_SIZE: no block holds more bytes


class Lz4Block(Lossless):
    """A bare block. The frame around it has its length, and the plan the length of its numbers."""

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


BLOCK = lz4.frame.BLOCKSIZE_MAX256KB
MAGIC = b"\x04\x22\x4d\x18"
FLAGS = (0x40, 0x60)  # version 1, blocks that may refer to each other or not, and no field that is optional
BLOCK_SIZES = (0x40, 0x50)  # 64 KiB or 256 KiB


class Lz4Frame(Lossless):
    """One standard frame. A header that asks for megabytes is refused."""

    name = "lz4-frame"
    number = 2

    def __init__(self, level: int = 0) -> None:
        self.level = level

    def encode(self, numbers: Array) -> memoryview | None:
        if not numbers.nbytes:
            return None
        payload = lz4.frame.compress(
            bytes_of(numbers), compression_level=self.level, block_size=BLOCK, store_size=False
        )
        return if_smaller(payload, numbers)

    def decode(self, payload: memoryview, out: Array) -> None:
        check_header(payload)
        reader = lz4.frame.LZ4FrameDecompressor()
        try:
            # One byte more than there should be: only so does the reader look at the end mark, and an excess shows.
            raw = reader.decompress(payload, max_length=out.nbytes + 1)
        except (RuntimeError, ValueError, EOFError) as error:
            raise BadPayload(f"not an LZ4 frame: {error}") from error
        if not reader.eof or reader.unused_data:
            raise BadPayload(f"an LZ4 frame that does not end with byte {out.nbytes} of the numbers")
        fill(out, raw)


def check_header(payload: memoryview) -> None:
    """A header can make the library reserve 8 MiB, for however few numbers. Our own headers never do."""
    if len(payload) < 7 or payload[:4] != MAGIC or payload[4] not in FLAGS or payload[5] not in BLOCK_SIZES:
        raise BadPayload("not the header of an LZ4 frame, or not of one of ours")
