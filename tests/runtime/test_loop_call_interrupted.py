"""Blocking calls that are interrupted: at every instruction, by real signals, and again while the first is heeded."""

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

import ringwide
from interrupting import PATIENCE_SECONDS, Interrupted, Two, interrupted_at
from local_ring import free_peers
from ringwide.runtime.background_loop import BackgroundLoop, background

SMALL, BULK = 4, 300_000
SIGNALS = 60
SIGNAL_EVERY_SECONDS = 50e-6


class BlockingRank:
    """A rank of `join_blocking`."""

    def __init__(self, ring: ringwide.BlockingRing, count: int) -> None:
        self._ring, self._count = ring, count

    def full(self, value: float) -> Any:
        return np.full(self._count, value)

    def call(self, tensor: Any) -> None:
        self._ring.allreduce(tensor, "sum")

    def made(self) -> int:
        return self._ring.statistics().collectives

    def made_for(self, thread: threading.Thread) -> None:
        self._ring._ring.made_for(thread)


@contextmanager
def two_ranks(count: int) -> Iterator[Two]:
    peers = free_peers(2)
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        contexts = [ringwide.join_blocking(rank=rank, peers=peers) for rank in range(2)]
        first, second = threads.map(stack.enter_context, contexts)
        yield Two(BlockingRank(first, count), BlockingRank(second, count))


@pytest.mark.parametrize("count", [SMALL, BULK])
def test_an_interrupt_at_any_instruction_leaves_a_tensor_whole_and_final(count: int) -> None:
    with two_ranks(count) as two:
        two.at_every_instruction()
        assert two.interrupts > 100


def test_so_does_one_in_a_thread_that_is_not_the_main_one() -> None:
    """Signals do not come there, but a program can raise in any thread (`PyThreadState_SetAsyncExc`)."""
    with two_ranks(SMALL) as two, ThreadPoolExecutor(1) as threads:
        threads.submit(two.at_every_instruction).result()
        assert two.interrupts > 100


def test_an_interrupt_after_the_end_of_the_loop_does_not_wait_for_it() -> None:
    async def call() -> None: ...

    ended = BackgroundLoop()
    ended.close()
    for instruction in itertools.count():
        try:
            with interrupted_at(instruction):
                ended.call(call)
        except Interrupted:
            continue
        except ringwide.RingClosed:
            break
    assert instruction > 100


@contextmanager
def handled(number: signal.Signals, handler: Callable[..., object]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def a_signal_after(seconds: float) -> Iterator[None]:
    armed = True

    def interrupt(*_: object) -> None:
        if armed:
            raise Interrupted

    with handled(signal.SIGALRM, interrupt):
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)


def test_a_signal_at_any_time_leaves_a_tensor_whole_and_final() -> None:
    with two_ranks(BULK) as two:
        two.start()
        for number in range(1, SIGNALS + 1):
            two.interrupt(a_signal_after(number * SIGNAL_EVERY_SECONDS), f"signal {number}")
        two.end()


def test_who_is_interrupted_again_stays_until_the_call_has_ended() -> None:
    """However often: what came meanwhile is raised then."""
    seen: list[str] = []
    begun, ending, may_end = threading.Event(), threading.Event(), threading.Event()

    def interrupt(*_: object) -> None:
        seen.append("interrupt")
        raise Interrupted

    def send_signals() -> None:
        begun.wait(PATIENCE_SECONDS)
        while not ending.wait(0):
            os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(SIGNALS):
            os.kill(os.getpid(), signal.SIGUSR1)
        may_end.set()

    async def call() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ending.set()
            assert may_end.wait(PATIENCE_SECONDS)  # the loop is busy with the end of the call
            seen.append("ended")

    sender = threading.Thread(target=send_signals)
    with handled(signal.SIGUSR1, interrupt):
        sender.start()
        with pytest.raises(Interrupted):
            background().call(call)
        left_at = len(seen)
        sender.join()
    assert "ended" in seen[:left_at]


def test_who_is_interrupted_while_handing_over_has_made_the_call() -> None:
    """It has its number, so that the next call of this rank is not taken for it."""
    made: list[str] = []

    async def call() -> None:
        made.append("begun")
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            made.append("given up")
            raise

    pending = background().pending(call)
    pending.give_up()
    assert made == ["begun", "given up"]
    pending.hand_over()  # too late, and no second time
    with pytest.raises(asyncio.CancelledError):
        pending.wait(PATIENCE_SECONDS)
    assert made == ["begun", "given up"]
