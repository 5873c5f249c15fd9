"""Exchange of gradients: each becomes the mean over all ranks.

`Plain` computes first and then sends all buckets. `Overlapped` runs the backward pass in a thread of its own, and sends
a bucket as soon as its gradients are final, while the pass goes on. Every rank sends its buckets in the same order,
whatever order they fill in, and one task makes all calls of a step.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from torch import Tensor

from ringwide.errors import ConfigError
from ringwide.tensors.arithmetic import OpName
from ringwide.training.optimizers import FlatBucket

# By default the thread of the backward pass may hold the interpreter for 5 ms, far too long for a small segment.
SWITCH_SECONDS = 0.0002


# Runs the backward pass and returns the loss. It calls its argument before the last batch, which completes gradients.
Compute = Callable[[Callable[[], None]], float]


class Averages(Protocol):
    def allreduce(self, tensors: Any, op: OpName = "mean", *, bucket: str = "") -> Coroutine[Any, Any, Any]: ...


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
    """Exchange during the computation, which runs in a thread. The first pass shows which gradients to wait for."""

    def __init__(self, ring: Averages, buckets: Sequence[FlatBucket]) -> None:
        self._ring, self._buckets = ring, buckets
        # The same memory with a version of its own: that of the gradients then counts what the model writes, and only
        # that, wherever the ring puts its results.
        self._travelling = [bucket.gradients.data for bucket in buckets]
        self.network_seconds = self.hidden_seconds = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ringwide-backward")
        self._loop = asyncio.get_running_loop()
        self._full: list[asyncio.Event] = []  # for each bucket: set when all its gradients are there
        self._busy = Busy(time.perf_counter)
        self._pass = BackwardPass(buckets)
        self._hooks = [
            member.register_post_accumulate_grad_hook(self._hook(index, position))  # type: ignore[no-untyped-call]
            for index, bucket in enumerate(buckets)
            for position, member in enumerate(bucket.members)
        ]
        _quick_switching.enter()

    async def average(self, compute: Compute) -> float:
        self._pass.begin()
        self._full = [asyncio.Event() for _ in self._buckets]
        before = self._busy.seconds()
        sending = asyncio.ensure_future(self._send_all(self._full))
        try:
            loss = await self._loop.run_in_executor(self._thread, compute, self._pass.complete_from_now)
            self.hidden_seconds += self._busy.seconds() - before
            self._pass.end()
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

    def _hook(self, index: int, position: int) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            """Runs in the thread: tell the loop of the buckets that are ready."""
            if self._pass.arrived(index, position):
                self._loop.call_soon_threadsafe(_set_first, self._pass.ready, self._full)

        return arrived

    async def _send_all(self, full: Sequence[asyncio.Event]) -> None:
        """Send each bucket of a step when it is full, and wait for all of them."""
        calls: list[asyncio.Task[Any]] = []
        try:
            for bucket, gradients, is_full in zip(self._buckets, self._travelling, full, strict=True):
                await is_full.wait()
                # The call itself is the task: one that is cancelled before its first turn must hear of it.
                calls.append(asyncio.ensure_future(self._ring.allreduce(gradients, bucket=bucket.name)))
                self._busy.until_done(calls[-1])
        except BaseException:
            await _end(calls)
            raise
        await _all_or_none(calls)


class BackwardPass:
    """Backward pass of one step: which buckets are ready, that is, have all their gradients and may leave.

    Autograd reports a parameter once for each backward pass that reaches it, and there can be several in a step: a
    reentrant checkpoint (`use_reentrant=True`) runs one for each of its calls, so a layer that is used three times is
    reported three times, and only the last makes its gradient final. So nothing is ready during the first pass, which
    is only counted. In later ones a parameter is complete when it was reported as often as ever before. A model that
    reports it once more, after its bucket has left, is refused: the sum that is under way lacks a part.
    """

    def __init__(self, buckets: Sequence[FlatBucket]) -> None:
        self._buckets = buckets
        self._most = [[1] * len(bucket.members) for bucket in buckets]  # reports in one pass; unused ones are awaited
        self._counted = False
        self.begin()

    def begin(self) -> None:
        self.ready = 0  # buckets before this one are ready
        self._complete = False  # only the last accumulated batch completes a gradient
        self._reported = False
        self._awaited = [most.copy() for most in self._most]  # reports of each parameter that are still to come
        self._missing = [len(bucket.members) for bucket in self._buckets]
        self._versions: list[int] = []  # of the gradients of each bucket that is ready, when it became so
        self._late: list[str] = []

    def complete_from_now(self) -> None:
        self._complete = True

    def arrived(self, index: int, position: int) -> bool:
        """Note a report of autograd. True if more buckets are ready than before."""
        if not self._complete:
            return False
        self._reported = True
        awaited = self._awaited[index]
        awaited[position] -= 1
        if not awaited[position]:
            self._missing[index] -= 1
        elif awaited[position] < 0:
            self._most[index][position] += 1
            if index < self.ready:
                self._late.append(self._buckets[index].names[position])
        return self._counted and self._advance()

    def _advance(self) -> bool:
        before = self.ready
        while self.ready < len(self._buckets) and not self._missing[self.ready]:
            self._versions.append(_version(self._buckets[self.ready].gradients))
            self.ready += 1
        return self.ready > before

    def end(self) -> None:
        """Raise if a gradient has changed after its bucket was ready, by autograd or by anything else."""
        self._counted |= self._reported  # a rank without samples has seen nothing
        for bucket, version in zip(self._buckets, self._versions, strict=False):
            if _version(bucket.gradients) != version:
                raise ConfigError(
                    f"training.overlap: the gradient of {', '.join(self._late or bucket.names)} changed after its"
                    f" bucket ({bucket.name!r}) had left for the other ranks: the backward pass of this step was not"
                    " like those before it; set training.overlap: false"
                )


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

    def until_done(self, task: "asyncio.Task[Any]") -> None:
        going_on = ExitStack()
        going_on.enter_context(self.during())
        task.add_done_callback(lambda _: going_on.close())


def _version(tensor: Tensor) -> int:
    """Number of writes to this memory so far, through whichever view."""
    return tensor._version  # noqa: SLF001 - torch has no other name for it


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
