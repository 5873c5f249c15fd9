"""The task that awaits an all-reduce is cancelled, at every moment of it.

Moments are enumerated, not drawn: before and after every callback of asyncio's event loop, in every turn of uvloop's,
before and after each frame that the rank hears, and when a payload has left. The call is repeated, each time cancelled
one moment later, until it is over before its moment comes. What is promised each time:

- The cancelled rank gets `CancelledError` and finds its tensors as they were; or its call has returned, with the sum.
- Every other rank gets `CollectiveAborted(by=the cancelled rank)` and finds its tensors as they were; or the exact sum,
  which it can have only when all that the cancelled rank owed to it had left.
- The next collective gives the exact sum on all.

What happens to a call before its first step (it is cancelled, closed, dropped) is in `test_call_queue.py`.
"""

import asyncio
import itertools
from asyncio.events import Handle
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ringwide
from local_ring import on_every_rank
from ringwide import Ring
from ringwide.collectives.bucket_operation import Operation
from ringwide.collectives.dispatcher import Dispatcher

pytestmark = pytest.mark.timeout(600)  # much is computed


class Moments:
    """Counts the moments of one call, and cancels its task at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._dispatcher: object = None
        self._passed = self._chosen = 0
        self.reached = False
        for place, name in ((Dispatcher, "landing"), (Dispatcher, "arrived"), (Operation, "sent"), (Handle, "_run")):
            monkeypatch.setattr(place, name, self._counted(getattr(place, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(this: Any, *arguments: Any) -> Any:
            ours = not isinstance(this, Dispatcher) or this is self._dispatcher
            if ours:
                self._pass()
            try:
                return function(this, *arguments)
            finally:
                if ours:
                    self._pass()

        return counted

    def _pass(self) -> None:
        if self._task is not None:
            if self._passed == self._chosen:
                self.reached = True
                self._task.cancel()
            self._passed += 1

    def cancel_at(self, chosen: int, ring: Ring) -> None:
        """The task that is running, when so many moments have passed."""
        self._task, self._dispatcher = asyncio.current_task(), ring._engine.dispatcher
        self._passed, self._chosen, self.reached = 0, chosen, False
        if not isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):  # whose callbacks are counted anyway
            self._pass_with_every_turn()

    def _pass_with_every_turn(self) -> None:
        if self._task is not None:
            self._pass()
            asyncio.get_running_loop().call_soon(self._pass_with_every_turn)

    def stop(self) -> None:
        self._task = None


def brought(rank: int, moment: int, counts: Sequence[int]) -> list[Any]:
    """Whole numbers, so that sums are exact; each of another dtype, and so of a bucket of its own."""
    dtypes = (np.float32, np.int64)
    return [
        (np.arange(count) % 7 + rank + moment % 5).astype(dtype) for count, dtype in zip(counts, dtypes, strict=False)
    ]


def total_of(size: int, moment: int, counts: Sequence[int]) -> list[Any]:
    parts = [brought(rank, moment, counts) for rank in range(size)]
    return [sum(tensors) for tensors in zip(*parts, strict=True)]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return all(map(np.array_equal, ours, theirs))


async def outcome_of(ring: Ring, victim: int, moment: int, counts: Sequence[int]) -> str:
    """How the call ended here, once it is certain that the tensors hold what they must."""
    mine = brought(ring.rank, moment, counts)
    try:
        await ring.allreduce(mine, op="sum")
    except asyncio.CancelledError:
        assert ring.rank == victim
        assert same(mine, brought(ring.rank, moment, counts))
        return "cancelled"
    except ringwide.CollectiveAborted as error:
        assert ring.rank != victim
        assert (error.by, error.reason) == (victim, "its task was cancelled")  # noqa: PT017 - or it succeeds
        assert same(mine, brought(ring.rank, moment, counts))
        return "aborted"
    assert same(mine, total_of(ring.size, moment, counts))
    return "the sum"


async def outcome_in_task(ring: Ring, victim: int, moments: Moments, moment: int, counts: Sequence[int]) -> str:
    """On every rank, as the order of calls goes by the tasks that make them."""
    outcome = ""

    async def call() -> None:
        nonlocal outcome
        if ring.rank == victim:
            moments.cancel_at(moment, ring)
        try:
            outcome = await outcome_of(ring, victim, moment, counts)
        finally:
            if ring.rank == victim:
                moments.stop()

    task = asyncio.create_task(call())
    await asyncio.wait([task])
    if not task.cancelled():  # as it is where the cancellation came too late for the call
        task.result()
    return outcome


CASES = {
    "tree": ([5, 3], {"algorithm": "tree"}),
    "bulk": ([1_500], {"algorithm": "ring", "segment_bytes": "4KiB"}),
    "two-bulks": ([1_500, 3], {"algorithm": "ring", "segment_bytes": "4KiB"}),
}
SIZES = [2, 3, 4]


@pytest.mark.parametrize(
    ("size", "case"), [(size, case) for size in SIZES for case in CASES if size == 2 or case != "two-bulks"]
)
async def test_every_moment(size: int, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, settings = CASES[case]
    moments, ends, together = Moments(monkeypatch), Counter[tuple[str, str]](), asyncio.Barrier(size)

    async def one_call(ring: Ring, victim: int, moment: int, *, comes_first: bool) -> None:
        if (ring.rank == victim) != comes_first:
            await turn_the_loop()
        where = "here" if ring.rank == victim else "there"
        ends[where, await outcome_in_task(ring, victim, moments, moment, counts)] += 1
        after = await ring.allreduce(np.full(4, ring.rank + moment, np.int64), op="sum")
        assert after.tolist() == [sum(rank + moment for rank in range(size))] * 4

    async def act(ring: Ring) -> None:
        for victim, comes_first in itertools.product(range(size), (True, False)):
            for moment in itertools.count():
                await together.wait()
                try:
                    await one_call(ring, victim, moment, comes_first=comes_first)
                except BaseException:
                    await together.abort()
                    raise
                await together.wait()
                if not moments.reached:
                    break

    await on_every_rank(size, act, patience=300, **settings)
    assert ends["here", "cancelled"] >= 2 * size
    assert ends["there", "aborted"] >= size
    assert ends["here", "the sum"] >= 2 * size  # the last of each round, at least


async def turn_the_loop() -> None:
    """Long enough for what another task has begun."""
    for _ in range(4):
        await asyncio.sleep(0)
