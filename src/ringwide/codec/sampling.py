"""Is compressing worth the time? A look at a few spots tells, at a fraction of the cost."""

from collections.abc import Iterator

from ringwide.codec.codec import Array, Codec


def shrinks(codec: Codec, numbers: Array, *, spots: int = 8, spot_bytes: int = 4096, at_most: float = 0.9) -> bool:
    """Do evenly spread spots of these numbers, encoded one by one, take less than `at_most` of their raw size?"""
    raw = encoded = 0
    for spot in spread(numbers, spots, max(1, spot_bytes // numbers.itemsize)):
        payload = codec.encode(spot)
        raw += spot.nbytes
        encoded += spot.nbytes if payload is None else len(payload)
    return encoded < at_most * raw


def spread(numbers: Array, spots: int, length: int) -> Iterator[Array]:
    """The first spot at the start, the last at the end; all numbers in one if the spots would touch."""
    if numbers.size <= spots * length or spots == 1:
        yield numbers[: max(length, numbers.size if spots > 1 else 0)]
        return
    for spot in range(spots):
        start = (numbers.size - length) * spot // (spots - 1)
        yield numbers[start : start + length]
