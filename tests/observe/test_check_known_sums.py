import numpy
import pytest

from ringwide.observe.check import DTYPES, PERIOD, differing, expected_table, filled, given_table

SIZES = [1, 2, 3, 5, 8, 64, 127]
OPS = {"sum": numpy.sum, "min": numpy.min, "max": numpy.max, "prod": numpy.prod, "mean": numpy.mean}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", OPS)
def test_expected_is_the_reduction_of_what_is_given(size: int, op: str) -> None:
    given = numpy.stack([given_table(rank, size, op) for rank in range(size)])
    assert numpy.array_equal(OPS[op](given, axis=0), expected_table(size, op))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", ["sum", "min", "max", "prod"])
def test_every_dtype_holds_the_numbers_exactly(dtype: str, size: int, op: str) -> None:
    table = expected_table(size, op)
    buffer = filled(table, PERIOD, dtype)
    back = buffer.astype(numpy.float64) if isinstance(buffer, numpy.ndarray) else buffer.double().numpy()
    assert numpy.array_equal(back, table)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("op", ["sum", "mean", "prod"])
def test_a_rank_left_out_or_added_twice_would_show(size: int, op: str) -> None:
    for rank in range(size):
        given, total = given_table(rank, size, op), expected_table(size, op)
        neutral = 1.0 if op == "prod" else 0.0
        assert numpy.count_nonzero(given != neutral) > PERIOD // (2 * size)
        assert numpy.any(total != given)


@pytest.mark.parametrize("shift", [2**power for power in range(22)])
def test_a_segment_in_the_wrong_place_would_show(shift: int) -> None:
    buffer = filled(expected_table(4, "sum"), 2**22, "float32")
    moved = differing(buffer[shift:], buffer[: len(buffer) - shift])
    assert moved > (len(buffer) - shift) // 2
