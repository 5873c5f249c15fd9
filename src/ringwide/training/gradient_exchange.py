"""Exchange of gradients: each becomes the mean over all ranks.

`Plain` computes first and then sends all buckets. `Overlapped` runs the backward pass in a thread of its own, and sends
a bucket as soon as its last gradient is there, while the pass goes on. Every rank sends its buckets in the same order,
whatever order they fill in, and one task makes all calls of a step.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

from ringwide.training.learner import FlatBucket

# By default the thread of the backward pass may hold the interpreter for 5 ms, far too long for a small segment.
SWITCH_SECONDS = 0.0002


# Runs the backward pass and returns the loss. It calls its argument before the last batch, which completes gradients.
Compute = Callable[[Callable[[], None]], float]


class Averages(Protocol):
    def allreduce(self, tensors: Any, op: str = "mean", *, bucket: str = "") -> Coroutine[Any, Any, Any]: ...


class GradientExchange(Protocol):
    """Runs the computation and leaves the mean over all ranks in every bucket."""

    network_seconds: float  # total time in which gradients were under way
    hidden_seconds: float  # of it, the time in which the computation went on

    async def average(self, compute: Compute) -> float: ...
    def close(self) -> None: ...


class Plain:
    """Exchange after the computation."""

    def __init__(self, ring: Averages, buckets: Sequence[FlatBucket]) -> None:
        self._ring, self._buckets = ring, buckets
        self.network_seconds = self.hidden_seconds = 0.0

    async def average(self, compute: Compute) -> float:
        loss = compute(_ignore)
        started = time.perf_counter()
        if len(self._buckets) == 1:  # no task: for a small model that costs as much as the collective
            await _send(self._ring, self._buckets[0])
        else:
            await _all_or_none([asyncio.ensure_future(_send(self._ring, bucket)) for bucket in self._buckets])
        self.network_seconds += time.perf_counter() - started
        return loss

    def close(self) -> None:
        pass


class Overlapped:
    """Exchange during the computation, which runs in a thread."""

    def __init__(self, ring: Averages, buckets: Sequence[FlatBucket]) -> None:
        self._ring, self._buckets = ring, buckets
        self.network_seconds = self.hidden_seconds = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ringwide-backward")
        self._loop = asyncio.get_running_loop()
        self._full: list[asyncio.Event] = []  # for each bucket: set when all its gradients are there
        self._busy = Busy(time.perf_counter)
        self._missing = [0] * len(buckets)
        self._ready = 0  # buckets before this one have all their gradients
        self._complete = False  # only the last accumulated batch completes a gradient
        self._hooks = [
            member.register_post_accumulate_grad_hook(self._hook(index))  # type: ignore[no-untyped-call]
            for index, bucket in enumerate(buckets)
            for member in bucket.members
        ]
        _quick_switching.enter()

    async def average(self, compute: Compute) -> float:
        self._missing = [len(bucket.members) for bucket in self._buckets]
        self._ready, self._complete, self._full = 0, False, [asyncio.Event() for _ in self._buckets]
        before = self._busy.seconds()
        sending = asyncio.ensure_future(self._send_all(self._full))
        try:
            loss = await self._loop.run_in_executor(self._thread, compute, self._complete_from_now)
            self.hidden_seconds += self._busy.seconds() - before
            _set_first(len(self._buckets), self._full)  # unused parameters get no gradient to wait for
            await sending
            return loss
        except BaseException:
            await _end([sending])
            raise
        finally:
            self.network_seconds += self._busy.seconds() - before

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._thread.shutdown()
        _quick_switching.leave()

    def _complete_from_now(self) -> None:
        self._complete = True

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            if self._complete:
                self._missing[index] -= 1
                self._announce()

        return arrived

    def _announce(self) -> None:
        """Runs in the thread: tell the loop of each bucket that is complete, in order."""
        while self._ready < len(self._buckets) and self._missing[self._ready] == 0:
            self._ready += 1
            self._loop.call_soon_threadsafe(_set_first, self._ready, self._full)

    async def _send_all(self, full: Sequence[asyncio.Event]) -> None:
        """Send each bucket of a step when it is full, and wait for all of them."""
        calls: list[asyncio.Task[None]] = []
        try:
            for bucket, is_full in zip(self._buckets, full, strict=True):
                await is_full.wait()
                calls.append(asyncio.ensure_future(self._during(_send(self._ring, bucket))))
        except BaseException:
            await _end(calls)
            raise
        await _all_or_none(calls)

    async def _during(self, call: Awaitable[None]) -> None:
        with self._busy.during():
            await call


class _QuickSwitching:
    """Short switch interval of the interpreter while anyone needs it: several ranks of a process may, in any order."""

    def __init__(self) -> None:
        self._count, self._before = 0, 0.0

    def enter(self) -> None:
        if not self._count:
            self._before = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_SECONDS)
        self._count += 1

    def leave(self) -> None:
        self._count -= 1
        if not self._count:
            sys.setswitchinterval(self._before)


_quick_switching = _QuickSwitching()


class Busy:
    """Time in which at least one of several calls was going on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._count, self._since, self._ended = clock, 0, 0.0, 0.0

    def seconds(self) -> float:
        return self._ended + (self._clock() - self._since if self._count else 0.0)

    @contextmanager
    def during(self) -> Iterator[None]:
        if not self._count:
            self._since = self._clock()
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._ended += self._clock() - self._since


def _ignore() -> None:
    pass


def _send(ring: Averages, bucket: FlatBucket) -> Coroutine[Any, Any, Any]:
    return ring.allreduce(bucket.gradients, bucket=bucket.name)


def _set_first(count: int, events: Sequence[asyncio.Event]) -> None:
    for event in events[:count]:
        event.set()


async def _all_or_none(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """Wait for all tasks. If one fails, the others are cancelled first: no call is left that nobody awaits."""
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        await _end(tasks)
        raise


async def _end(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
