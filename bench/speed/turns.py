"""What a turn is, the same for every contestant: one call that is not timed, then some that are. Standard library only.

Each rank times its own calls. Between calls a tensor is filled with ones again only if sums would grow too large
otherwise, since ranks that fill a large tensor on few cores begin the next call at different times.
"""

import time
from collections.abc import Awaitable, Callable

EXACT = 2**24  # whole numbers up to this are exact in float32


def calls_per_turn(nbytes: int) -> int:
    return 50 if nbytes <= 2**17 else 10 if nbytes <= 2**21 else 2


def time_calls(calls: int, ranks: int, fill: Callable[[], object], call: Callable[[], object]) -> list[float]:
    fill()
    call()
    refill, seconds = is_refilled(calls, ranks), []
    for _ in range(calls):
        if refill:
            fill()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


async def time_awaited_calls(
    calls: int, ranks: int, fill: Callable[[], object], call: Callable[[], Awaitable[object]]
) -> list[float]:
    fill()
    await call()
    refill, seconds = is_refilled(calls, ranks), []
    for _ in range(calls):
        if refill:
            fill()
        start = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - start)
    return seconds


def is_refilled(calls: int, ranks: int) -> bool:
    return bool(ranks ** (calls + 1) > EXACT)


def expected_sum(calls: int, ranks: int) -> float:
    """Of ones, after all calls of a turn."""
    return float(ranks if is_refilled(calls, ranks) else ranks ** (calls + 1))


def check_sum(right: bool, calls: int, ranks: int) -> None:
    if not right:
        raise ArithmeticError(f"a wrong sum: not every number is {expected_sum(calls, ranks):g}")
