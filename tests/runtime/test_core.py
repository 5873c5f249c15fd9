"""Forming a ring that is given up in the very moment in which it forms."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ringwide.collectives.plan import Planner
from ringwide.config.ring_config import RingConfig
from ringwide.runtime.core import NOTES, RingCore


class EndsWhenTold:
    """A dispatcher whose collective ends when the test says so."""

    def __init__(self) -> None:
        self.end: Callable[[Exception | None], object] = print
        self.aborted = False

    def submit(self, plan: object, buckets: object, on_done: Callable[[Exception | None], object]) -> object:
        self.end = on_done
        return self

    def abort(self, collective: object, reason: str, *, leaving: bool) -> None:
        self.aborted = True


async def test_a_join_that_is_cancelled_while_the_notes_are_combined_breaks_nothing() -> None:
    core: Any = object.__new__(RingCore)
    core.rank, core.config, core.leaving, core.dispatcher = 0, RingConfig(), lambda: False, EndsWhenTold()
    planner = Planner(rank=0, size=2, segment_bytes=1024, algorithm="auto", tree_bytes=4096)
    joining = asyncio.create_task(core._combine_notes(planner, np.zeros(NOTES.count, np.uint8), 60.0))
    await asyncio.sleep(0)
    joining.cancel()
    core.dispatcher.end(None)  # on a lane, before the task has its turn: whatever is raised here ends that lane
    with pytest.raises(asyncio.CancelledError):
        await joining
    assert core.dispatcher.aborted
