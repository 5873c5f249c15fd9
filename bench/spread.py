"""Medians with their quartiles: how far turns of the same thing lie apart."""

import statistics
from collections.abc import Sequence


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The first quartile, the median and the third one."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratios(dividends: Sequence[float], divisors: Sequence[float]) -> list[float]:
    """Quartiles of the ratio, turn by turn: neighbouring turns met the same noise."""
    return list(quartiles([one / other for one, other in zip(dividends, divisors, strict=True)]))
