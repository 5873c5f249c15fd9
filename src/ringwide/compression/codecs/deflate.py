"""zlib: smaller than LZ4 and much slower, for networks slower still."""

import zlib

from ringwide.compression.codecs.base import Array, BadPayload, Lossless, fill, if_smaller, memory_of


class Zlib(Lossless):
    """One zlib stream, with its checksum."""

    name = "zlib"
    number = 3

    def __init__(self, level: int = 1) -> None:
        self.level = level

    def encode(self, numbers: Array) -> memoryview | None:
        return if_smaller(zlib.compress(memory_of(numbers), self.level), numbers)

    def decode(self, payload: memoryview, out: Array) -> None:
        reader = zlib.decompressobj()
        try:
            raw = reader.decompress(payload, out.nbytes + 1)  # one byte more: the end is read and an excess shows
        except zlib.error as error:
            raise BadPayload(f"not a zlib stream: {error}") from error
        if not reader.eof or reader.unused_data:
            raise BadPayload(f"a zlib stream that does not end with byte {out.nbytes} of the numbers")
        fill(out, raw)
