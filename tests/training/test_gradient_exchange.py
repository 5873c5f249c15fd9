"""Exchange of gradients, with made-up backward passes: each gets the order of its gradients, and waits where told."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_memory_ring import Meeting
from torch import nn

from ringwide.training.gradient_exchange import Busy, Compute, Overlapped, Plain
from ringwide.training.optimizers import FlatBucket, flatten

PATIENCE_SECONDS = 60
KINDS = [Plain, Overlapped]


class Weights(nn.Module):
    """One number each; with the smallest bucket, each is a bucket of its own."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.each = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(count))


def made(count: int, together: int = 1) -> tuple[list[nn.Parameter], list[FlatBucket]]:
    """The parameters in the order of their buckets, `together` in each."""
    buckets = flatten(Weights(count), 4 * together)
    return [member for bucket in buckets for member in bucket.members], buckets


def backward(weights: Sequence[nn.Parameter], order: Sequence[int], value: float = 1.0) -> None:
    """The gradient of each that is named in `order`, one after the other, is `value`."""
    for index in order:
        (weights[index] * value).sum().backward()


def whole_pass(weights: Sequence[nn.Parameter]) -> Compute:
    def compute(completes: Callable[[], None]) -> float:
        completes()
        backward(weights, range(len(weights)))
        return 0.0

    return compute


class Slow:
    """A ring whose collectives wait to be let through. Tells what began, in order, and what was cancelled."""

    def __init__(self, *, fails: str = "") -> None:
        self.began: list[str] = []
        self.cancelled: list[str] = []
        self.something_began = asyncio.Event()
        self.open = asyncio.Event()
        self._fails = fails

    async def allreduce(self, tensors: Any, op: str = "mean", *, bucket: str = "") -> Any:
        self.began.append(bucket)
        self.something_began.set()
        if bucket == self._fails:
            raise ConnectionError(f"{bucket} is lost")
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(bucket)
            raise
        return tensors

    async def overlapped(self, weights: Sequence[nn.Parameter], buckets: Sequence[FlatBucket]) -> Overlapped:
        """An exchange over this ring after its first pass, in which nothing travels early."""
        exchange = Overlapped(self, buckets)
        self.open.set()
        await exchange.average(whole_pass(weights))
        self.open.clear()
        self.something_began.clear()
        self.began.clear()
        return exchange


@pytest.fixture(autouse=True)
def _patience() -> Iterator[None]:
    """Whatever waits in a thread is let go when its test is over."""
    yield
    for event in waiting:
        event.set()
    waiting.clear()


waiting: list[threading.Event] = []


def gate() -> threading.Event:
    waiting.append(threading.Event())
    return waiting[-1]


def names(*numbers: int) -> list[str]:
    return [f"gradients {number}" for number in numbers]


# -- what all ways have in common


@pytest.mark.parametrize("kind", KINDS)
async def test_every_bucket_holds_the_mean_of_all_ranks(kind: type[Plain] | type[Overlapped]) -> None:
    meeting = Meeting(3)

    async def one_rank(rank: int) -> tuple[float, list[float]]:
        weights, buckets = made(5, together=2)

        def compute(completes: Callable[[], None]) -> float:
            completes()
            backward(weights, range(5), value=float(rank))
            return 10.0 + rank

        exchange = kind(meeting.ring(rank), buckets)
        loss = await exchange.average(compute)
        exchange.close()
        return loss, [float(weight.grad) for weight in weights]

    assert await asyncio.gather(*map(one_rank, range(3))) == [(10.0 + rank, [1.0] * 5) for rank in range(3)]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_of_a_collective_comes_out_and_ends_the_others(kind: type[Plain] | type[Overlapped]) -> None:
    _, buckets = made(3)
    ring = Slow(fails="gradients 1")
    exchange = kind(ring, buckets)
    with pytest.raises(ConnectionError, match="gradients 1 is lost"):
        await exchange.average(lambda completes: 0.0)
    exchange.close()
    assert ring.began == names(0, 1, 2)
    assert ring.cancelled == names(0, 2)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_before_anything_travels_comes_out(kind: type[Plain] | type[Overlapped]) -> None:
    def compute(completes: Callable[[], None]) -> float:
        raise ZeroDivisionError("a model")

    _, buckets = made(2)
    ring = Slow()
    exchange = kind(ring, buckets)
    with pytest.raises(ZeroDivisionError, match="a model"):
        await exchange.average(compute)
    exchange.close()
    assert ring.began == []


async def test_who_is_not_overlapped_hides_nothing() -> None:
    weights, buckets = made(2)
    exchange = Plain(Meeting(1).ring(0), buckets)
    await exchange.average(lambda completes: backward(weights, [0, 1]) or 0.0)
    assert exchange.network_seconds > 0
    assert exchange.hidden_seconds == 0


# -- overlapped


async def order_of_travel(order: Sequence[int], count: int, together: int) -> list[str]:
    weights, buckets = made(count, together)
    ring = Meeting(1).ring(0)
    exchange = Overlapped(ring, buckets)

    def compute(completes: Callable[[], None]) -> float:
        completes()
        backward(weights, order)
        return 0.0

    try:
        await exchange.average(whole_pass(weights))
        ring.calls.clear()
        ring.meeting = Meeting(1)
        await exchange.average(compute)
    finally:
        exchange.close()
    return ring.calls


@given(st.permutations(range(7)), st.integers(0, 7), st.integers(1, 3))
def test_buckets_travel_in_one_order_whatever_arrives_first_or_never(
    order: list[int], arrive: int, together: int
) -> None:
    calls = asyncio.run(order_of_travel(order[:arrive], count=7, together=together))
    assert calls == names(*range(-(-7 // together)))


async def test_a_bucket_travels_as_soon_as_it_is_whole_and_those_before_it_are() -> None:
    weights, buckets = made(4, together=2)
    ring, go_on, started = Slow(), gate(), []

    def compute(completes: Callable[[], None]) -> float:
        completes()
        backward(weights, [3, 2, 0])  # the second is whole, the first is not
        started.extend(ring.began)
        backward(weights, [1])
        assert go_on.wait(PATIENCE_SECONDS)
        return 0.0

    exchange = await ring.overlapped(weights, buckets)
    running = asyncio.ensure_future(exchange.average(compute))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await ring.something_began.wait()  # while the pass goes on
        await asyncio.sleep(0)
    assert started == []
    assert ring.began[0] == "gradients 0"
    go_on.set()
    ring.open.set()
    await running
    exchange.close()
    assert ring.began == names(0, 1)


async def test_of_accumulated_batches_only_the_last_completes_a_gradient() -> None:
    weights, buckets = made(2)
    ring = Meeting(1).ring(0)
    travelled_before: list[str] = []

    def compute(completes: Callable[[], None]) -> float:
        backward(weights, [0, 1])
        backward(weights, [0, 1])
        turn_of_the_loop()
        travelled_before.extend(ring.calls)
        completes()
        backward(weights, [0, 1])
        return 0.0

    loop = asyncio.get_running_loop()

    def turn_of_the_loop() -> None:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE_SECONDS)

    exchange = Overlapped(ring, buckets)
    for _ in range(2):  # and the next step begins anew
        await exchange.average(compute)
    exchange.close()
    assert travelled_before == names(0, 1)  # those of the first step, seen by the second
    assert ring.calls == names(0, 1, 0, 1)
    assert [float(weight.grad) for weight in weights] == [6.0, 6.0]


def fails_late(weights: Sequence[nn.Parameter], go_on: threading.Event) -> Compute:
    def compute(completes: Callable[[], None]) -> float:
        completes()
        backward(weights, [0])
        assert go_on.wait(PATIENCE_SECONDS)
        raise ZeroDivisionError("a layer")

    return compute


async def test_an_error_in_the_backward_pass_ends_what_travels_already() -> None:
    weights, buckets = made(3)
    ring, go_on = Slow(), gate()
    exchange = await ring.overlapped(weights, buckets)
    running = asyncio.ensure_future(exchange.average(fails_late(weights, go_on)))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await ring.something_began.wait()
    go_on.set()
    with pytest.raises(ZeroDivisionError, match="a layer"):
        await running
    exchange.close()
    assert ring.began == ring.cancelled == names(0)


async def test_an_error_right_after_a_bucket_is_whole_leaves_nothing_half_begun() -> None:
    weights, buckets = made(3)
    ring, go_on = Slow(), gate()
    go_on.set()
    exchange = await ring.overlapped(weights, buckets)
    with pytest.raises(ZeroDivisionError):
        await exchange.average(fails_late(weights, go_on))
    exchange.close()
    assert ring.cancelled == ring.began


async def test_after_a_cancellation_nothing_starts_though_the_pass_goes_on() -> None:
    weights, buckets = made(3)
    ring, go_on, over = Slow(), gate(), gate()

    def compute(completes: Callable[[], None]) -> float:
        completes()
        backward(weights, [0])
        assert go_on.wait(PATIENCE_SECONDS)
        backward(weights, [1, 2])
        over.set()
        return 0.0

    exchange = await ring.overlapped(weights, buckets)
    running = asyncio.ensure_future(exchange.average(compute))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await ring.something_began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    go_on.set()
    assert await asyncio.to_thread(over.wait, PATIENCE_SECONDS)
    await asyncio.sleep(0)
    exchange.close()
    assert ring.began == ring.cancelled == names(0)


async def test_what_is_ended_before_it_began_leaves_no_warning() -> None:
    _, buckets = made(1)
    ring = Slow()
    exchange = Overlapped(ring, buckets)
    step = asyncio.create_task(exchange.average(lambda completes: 0.0))
    await asyncio.sleep(0)
    step.cancel()
    await asyncio.wait([step])
    exchange.close()
    assert ring.began == []


async def test_it_leaves_the_interpreter_the_threads_and_the_model_as_it_found_them() -> None:
    weights, buckets = made(2)
    sys.setswitchinterval(0.005)  # whatever another test has left behind
    before = sys.getswitchinterval()
    ring = Slow()
    exchange = Overlapped(ring, buckets)
    assert sys.getswitchinterval() < before
    ring.open.set()
    await exchange.average(lambda completes: 0.0)
    exchange.close()
    assert sys.getswitchinterval() == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ringwide-backward")]
    exchange._pass.complete_from_now()
    backward(weights, [0, 1])
    await asyncio.sleep(0)
    assert ring.began == names(0, 1)  # by that one step, not by what came after


# -- how long


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_busy_is_the_time_in_which_at_least_one_thing_goes_on() -> None:
    clock = Clock()
    busy = Busy(clock)
    clock.now += 7
    assert busy.seconds() == 0
    with busy.during():
        clock.now += 1
        with busy.during():
            clock.now += 2
        assert busy.seconds() == 3
        clock.now += 4
    clock.now += 8
    assert busy.seconds() == 7
    with busy.during():
        clock.now += 16
        assert busy.seconds() == 23
    assert busy.seconds() == 23


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=6))
def test_busy_is_the_union_of_what_overlaps(spans: list[tuple[int, int]]) -> None:
    clock, busy = Clock(), Busy(lambda: clock.now)
    clock.now = 0
    open_now: dict[int, Any] = {}
    for moment in range(80):
        clock.now = moment
        for index, (start, length) in enumerate(spans):
            if start == moment:
                open_now[index] = busy.during()
                open_now[index].__enter__()
            if start + length == moment:
                open_now.pop(index).__exit__(None, None, None)
    assert busy.seconds() == len({second for start, length in spans for second in range(start, start + length)})


async def test_an_error_ends_the_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    busy = Busy(clock)

    def fail() -> None:
        with busy.during():
            clock.now += 1
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail()
    clock.now += 5
    assert busy.seconds() == 1


async def test_hidden_is_what_travelled_while_the_pass_went_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("ringwide.training.gradient_exchange.time.perf_counter", clock)
    weights, buckets = made(2)
    ring, go_on = Slow(), gate()

    def compute(completes: Callable[[], None]) -> float:
        completes()
        backward(weights, [0])
        assert go_on.wait(PATIENCE_SECONDS)
        backward(weights, [1])
        return 0.0

    exchange = await ring.overlapped(weights, buckets)
    for step in (1, 2):
        running = asyncio.ensure_future(exchange.average(compute))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ring.something_began.wait()
            clock.now += 3  # the first travels, the second is still computed
            go_on.set()
            while len(ring.began) < 2 * step or exchange.hidden_seconds < 3 * step:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)
        clock.now += 5  # both travel, nothing is computed
        ring.open.set()
        await running
        clock.now += 100  # the optimizer's step
        assert (exchange.hidden_seconds, exchange.network_seconds) == (3 * step, 8 * step)
        for event in (ring.open, ring.something_began, go_on):
            event.clear()
    exchange.close()
