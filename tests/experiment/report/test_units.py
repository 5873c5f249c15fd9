import math

import pytest

from ringwide.experiment.report import units


@pytest.mark.parametrize(
    ("form", "value", "expected"),
    [
        (units.count, 12345, "12,345"),
        (units.number, 0, "0"),
        (units.number, 0.01234, "0.0123"),
        (units.number, 1.234, "1.23"),
        (units.number, 81.24, "81.2"),
        (units.number, 24373.4, "24,373"),
        (units.size, 999, "999 B"),
        (units.size, 5160, "5.16 kB"),
        (units.size, 2_900_000, "2.90 MB"),
        (units.size, 24e9, "24.0 GB"),
        (units.size, 3.2e15, "3,200 TB"),
        (units.speed, 12_300_000, "12.3 MB/s"),
        (units.duration, 0, "0 s"),
        (units.duration, 0.0012, "1.20 ms"),
        (units.duration, 0.0000012, "1.20 µs"),
        (units.duration, 30.04, "30.0 s"),
        (units.duration, 200, "3 min 20 s"),
        (units.duration, 7500, "2 h 05 min"),
        (units.loss, 2.3, "2.300"),
        (units.loss, 1234.56, "1235"),
        (units.loss, 123456.0, "1.235e+05"),
        (units.share, 0.9725, "97.2 %"),
        (units.ratio, 1.2449, "1.24×"),
    ],
)
def test_numbers_are_written_for_people(form: units.Form, value: float, expected: str) -> None:
    assert form(value) == expected


@pytest.mark.parametrize("form", [units.count, units.number, units.size, units.speed, units.duration, units.loss])
def test_what_is_not_a_number_is_told(form: units.Form) -> None:
    assert [form(value) for value in (None, math.nan, math.inf, -math.inf)] == ["–", "NaN", "∞", "-∞"]


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0 B"), (1000, "1,000 B"), (512 * 1024, "512 KiB"), (8 * 1024**2, "8 MiB")]
)
def test_a_chosen_size_is_not_rounded(value: int, expected: str) -> None:
    assert units.exact_size(value) == expected
