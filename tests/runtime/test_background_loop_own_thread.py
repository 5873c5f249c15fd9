"""What the collector or a program may do on the loop's own thread, or to it: nobody waits for itself."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ringwide
from local_ring import free_peers
from ringwide.errors import RingClosed
from ringwide.runtime import background_loop as module
from ringwide.runtime.background_loop import BackgroundLoop, background

PATIENCE_SECONDS = 60


@pytest.fixture
def own_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A background of the test's own, which it may ruin."""
    monkeypatch.setattr(module, "_loops", [])
    yield
    for loop in module._loops:
        loop.close()


def _never_exited(peers: list[str]) -> tuple[list[Any], list[ringwide.BlockingRing]]:
    """The contexts of both ranks, entered, each in a cycle that only the collector finds."""
    contexts = [ringwide.join_blocking(rank=rank, peers=peers) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:
        rings = list(threads.map(lambda context: context.__enter__(), contexts))
    return contexts, rings


def test_a_context_that_the_collector_finds_on_the_loops_thread_is_left() -> None:
    """Nobody has exited it. Left, and not waited for: the others hear it, and the loop goes on."""
    contexts, rings = _never_exited(free_peers(2))
    cycle: list[Any] = [contexts[0]]
    cycle.append(cycle)

    async def collect() -> None:
        gc.collect()

    del contexts[0], cycle
    background().start(collect).wait(PATIENCE_SECONDS)
    with pytest.raises(ringwide.PeerLeft):
        rings[1].allreduce(np.ones(2))
    contexts[0].__exit__(None, None, None)


async def _value(value: int) -> int:
    return value


def test_who_waits_on_the_loops_thread_hears_that_it_would_wait_for_itself() -> None:
    async def waiting(behind: BackgroundLoop) -> list[str]:
        said = []
        for wait in (behind.start(never).wait, behind.pending(never).result, lambda: behind.call(never)):
            with pytest.raises(RuntimeError, match="waits for itself") as caught:
                wait()
            said.append(str(caught.value))
        behind.cancel_calls()
        return said

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    behind = background()
    pending = behind.start_task(lambda: waiting(behind))
    assert len(pending.wait(PATIENCE_SECONDS)) == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_has_ended_is_replaced(own_loop: None) -> None:
    def leave() -> None:
        raise SystemExit

    first = background()
    first.loop.call_soon_threadsafe(leave)
    first._thread.join(PATIENCE_SECONDS)
    with pytest.raises(RingClosed):
        first.call(lambda: _value(1))
    assert background() is not first
    assert background().call(lambda: _value(2)) == 2
    assert module._loops == [background()]


def test_a_finalizer_that_runs_while_the_loop_is_made_gets_a_loop(own_loop: None) -> None:
    """With a lock around the making it would wait for its own thread."""
    got: list[int] = []

    class Asks:
        def __del__(self) -> None:
            got.append(background().call(lambda: _value(3)))

    class Trash(list[BackgroundLoop]):
        def append(self, loop: BackgroundLoop) -> None:
            trash.clear()
            super().append(loop)

    trash = [Asks()]
    module._loops = Trash()
    assert background().call(lambda: _value(4)) == 4
    assert got == [3]


def test_an_error_is_a_fresh_one_for_everyone_who_waits() -> None:
    """Else each would add its frames to the same traceback, and their tensors would live as long as the call."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError("not here")

    pending = background().start(fail)
    errors = []
    for _ in range(3):
        with pytest.raises(LookupError, match="not here") as caught:
            pending.wait()
        errors.append(caught.value)
    assert len(set(map(id, errors))) == 3
    depths = [len(list(_frames(error))) for error in errors]
    assert depths[0] == depths[2]


def _frames(error: BaseException) -> Iterator[object]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def test_a_failed_call_is_no_cycle() -> None:
    """Its tensors are gone with it, without the collector."""

    class Tensor: ...

    async def fail(tensor: Tensor) -> None:
        raise LookupError(str(tensor))

    def call() -> "weakref.ref[Tensor]":
        tensor = Tensor()
        pending = background().start(lambda: fail(tensor))
        with pytest.raises(LookupError):
            pending.result()
        return weakref.ref(tensor)

    background().call(lambda: _value(0))
    gc.disable()
    try:
        alive = call()
        background().call(lambda: _value(0))
        assert alive() is None
    finally:
        gc.enable()


def test_the_ring_is_called_on_the_loops_thread_for_the_one_that_handed_over() -> None:
    threads: list[threading.Thread] = []

    def begin() -> Any:
        threads.append(threading.current_thread())
        return _value(1)

    pending = background().start(begin)
    assert pending.wait() == 1
    assert threads == [background()._thread]
    assert pending.caller is threading.current_thread()
