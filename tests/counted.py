"""How much is done for something, counted instead of timed: a machine that is busy changes nothing."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(act: Callable[[], object]) -> int:
    """How many lines of Python are run in `act`, those of all that it calls included."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def grows_evenly(act: Callable[[int], object], few: int = 50) -> bool:
    """Does eight times as much take about eight times as long, not sixty-four times?"""
    act(few)  # once for what is done only once
    return lines_run(lambda: act(8 * few)) < 16 * lines_run(lambda: act(few))
