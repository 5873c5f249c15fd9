"""How a bucket is cut: bucket > chunk (one per rank) > segment (what is sent, added and passed on as one piece).

Every element lies in exactly one segment. Chunks differ by at most one element, and all chunks have the same number of
segments, so that a segment's number alone tells its chunk. A bucket without elements still has segments, of no bytes:
their frames carry the fingerprint, and so even an empty collective finds ranks that disagree.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Layout:
    """The cut of `count` elements of `itemsize` bytes into chunks and segments."""

    count: int
    itemsize: int
    chunks: int
    segment_bytes: int
    segments_per_chunk: int = field(init=False)
    bounds: tuple[tuple[int, int], ...] = field(init=False, repr=False)
    """Of each segment: its first element, and the element after its last."""

    def __post_init__(self) -> None:
        largest_chunk = -(-self.count // self.chunks)
        segment = max(1, self.segment_bytes // self.itemsize)  # in whole elements: none lies in two segments
        pieces = max(1, -(-largest_chunk // segment))
        object.__setattr__(self, "segments_per_chunk", pieces)
        object.__setattr__(self, "bounds", tuple(self._bounds(pieces)))

    def _bounds(self, pieces: int) -> list[tuple[int, int]]:
        edges = [
            first + (last - first) * piece // pieces
            for first, last in (self.chunk_bounds(chunk) for chunk in range(self.chunks))
            for piece in range(pieces)
        ]
        return list(zip(edges, [*edges[1:], self.count], strict=True))

    @property
    def segments(self) -> int:
        return self.chunks * self.segments_per_chunk

    @property
    def largest_segment_bytes(self) -> int:
        return -(-self.count // self.segments) * self.itemsize

    def chunk_bounds(self, chunk: int) -> tuple[int, int]:
        return self.count * chunk // self.chunks, self.count * (chunk + 1) // self.chunks

    def chunk_of(self, segment: int) -> int:
        return segment // self.segments_per_chunk

    def segments_of(self, chunk: int) -> range:
        return range(chunk * self.segments_per_chunk, (chunk + 1) * self.segments_per_chunk)
