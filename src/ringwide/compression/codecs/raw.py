"""No codec: numbers travel as they lie in memory."""

from ringwide.compression.codecs.base import Array, Lossless, fill


class Raw(Lossless):
    """Never encodes. It still decodes, so that whoever reads a frame need not ask."""

    name = "none"
    number = 0

    def encode(self, numbers: Array) -> memoryview | None:
        return None

    def decode(self, payload: memoryview, out: Array) -> None:
        fill(out, payload)

    def size_bound(self, count: int, itemsize: int) -> int:
        return count * itemsize
