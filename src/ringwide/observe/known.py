"""Numbers whose reduction every rank knows without asking: made by formula from rank and index.

They repeat after PERIOD elements, a prime: a segment (a power of two) that ends up in the wrong place shows, and a
table of one period is enough to know any length. All are small integers, so every dtype holds every sum exactly.
"""

import numpy
from numpy.typing import NDArray

PERIOD = 4093
REDUCTIONS: dict[str, numpy.ufunc] = {
    "sum": numpy.add,
    "mean": numpy.add,
    "min": numpy.minimum,
    "max": numpy.maximum,
    "prod": numpy.multiply,
}


def given_table(rank: int, size: int, op: str) -> NDArray[numpy.float64]:
    """One period of what this rank puts in."""
    index = numpy.arange(PERIOD)
    if op == "prod":
        # One rank in turn brings a factor, the others 1: the product stays small for any number of ranks.
        return numpy.where(index % size == rank, index % 7 + 2, 1).astype(numpy.float64)
    values = (index * (2 * rank + 3) + rank) % PERIOD
    return (values % (_largest(size) + 1)).astype(numpy.float64)


def expected_table(size: int, op: str) -> NDArray[numpy.float64]:
    """One period of what every rank must hold afterwards."""
    given = numpy.stack([given_table(rank, size, op) for rank in range(size)])
    reduced: NDArray[numpy.float64] = REDUCTIONS[op].reduce(given)
    # Rounding an exact quotient from float64 to a narrower type gives what dividing there would have given.
    return reduced / size if op == "mean" else reduced


def _largest(size: int) -> int:
    # Sums up to 127 fit int8, and bfloat16 counts exactly to 256.
    return max(1, min(10, 127 // size))
