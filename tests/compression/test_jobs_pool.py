"""Where jobs run: beside the event loop or between its events, on both loops (see conftest.py)."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ringwide.compression.jobs import CodecPool

PATIENCE_SECONDS = 60
THREADS = [0, 1, 3]

every_staff = pytest.mark.parametrize("threads", THREADS)


class Results:
    """What came back, and on which thread."""

    def __init__(self) -> None:
        self.ends: list[tuple[Any, Exception | None]] = []
        self.threads: set[int] = set()
        self._changed = asyncio.Event()

    def then(self, result: Any, error: Exception | None) -> None:
        self.threads.add(threading.get_ident())
        self.ends.append((result, error))
        self._changed.set()

    async def all_of(self, count: int) -> list[Any]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.ends) < count:
                self._changed.clear()
                await self._changed.wait()
        return [result for result, _ in self.ends]


@contextmanager
def codec_pool(threads: int) -> Iterator[CodecPool]:
    made = CodecPool(threads)
    try:
        yield made
    finally:
        made.close()


def codec_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ringwide-codec")]


@every_staff
async def test_results_come_back_on_the_event_loop(threads: int) -> None:
    results = Results()
    with codec_pool(threads) as pool:
        for number in range(50):
            pool.run(lambda number=number: number * number, results.then)
        assert sorted(await results.all_of(50)) == [number * number for number in range(50)]
    assert results.threads == {threading.get_ident()}


@every_staff
async def test_nobody_who_hands_a_job_in_waits_for_it(threads: int) -> None:
    order: list[str] = []
    results = Results()
    with codec_pool(threads) as pool:
        pool.run(lambda: None, lambda *_: (order.append("job"), results.then(None, None)))
        order.append("handed in")
        await results.all_of(1)
    assert order == ["handed in", "job"]


@every_staff
async def test_an_error_comes_back_and_the_next_job_runs(threads: int) -> None:
    results = Results()
    with codec_pool(threads) as pool:
        pool.run(lambda: 1 // 0, results.then)
        pool.run(lambda: "fine", results.then)
        await results.all_of(2)
    errors = [error for _, error in results.ends if error is not None]
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert ("fine", None) in results.ends


@every_staff
async def test_a_job_may_hand_in_the_next_one_from_its_result(threads: int) -> None:
    results = Results()
    with codec_pool(threads) as pool:

        def again(number: Any, error: Exception | None) -> None:
            results.then(number, error)
            if number < 20:
                pool.run(lambda: number + 1, again)

        pool.run(lambda: 0, again)
        pool.run(lambda: 100, results.then)
        assert sorted(await results.all_of(22)) == [*range(21), 100]


async def test_the_event_loop_lives_between_two_jobs() -> None:
    """Without threads: a byte that comes while many jobs wait is read before they are all done."""
    results, loop = Results(), asyncio.get_running_loop()
    one, other = socket.socketpair()
    with one, other, codec_pool(0) as pool:
        one.setblocking(False)
        done_when_read: list[int] = []

        def readable() -> None:
            one.recv(1)
            done_when_read.append(len(results.ends))

        loop.add_reader(one, readable)
        for _ in range(100):
            pool.run(lambda: None, results.then)
        other.send(b"x")
        await results.all_of(100)
        loop.remove_reader(one)
    assert done_when_read
    assert done_when_read[0] <= 5


async def test_the_event_loop_lives_while_all_threads_are_busy() -> None:
    results, release = Results(), threading.Event()
    with codec_pool(2) as pool:
        for _ in range(8):
            pool.run(lambda: release.wait(PATIENCE_SECONDS), results.then)
        for _ in range(5):
            await asyncio.sleep(0)
        assert results.ends == []
        release.set()
        assert await results.all_of(8) == [True] * 8


async def test_as_many_jobs_run_at_once_as_there_are_threads() -> None:
    results, together = Results(), threading.Barrier(3)
    with codec_pool(3) as pool:
        for _ in range(3):
            pool.run(lambda: together.wait(PATIENCE_SECONDS), results.then)
        assert sorted(await results.all_of(3)) == [0, 1, 2]


async def test_it_can_be_staffed_later() -> None:
    results, here = Results(), threading.get_ident()
    with codec_pool(0) as pool:
        pool.run(threading.get_ident, results.then)
        pool.start_threads(1)
        pool.run(threading.get_ident, results.then)
        assert set(await results.all_of(2)) - {here} != set()
        assert here in await results.all_of(2)  # what was handed in before is still done


@every_staff
async def test_after_it_is_closed_nothing_comes_back(threads: int, caplog: pytest.LogCaptureFixture) -> None:
    results, begun, release = Results(), threading.Barrier(threads + 1), threading.Event()
    with codec_pool(threads) as pool:
        if threads:
            for _ in range(threads):
                pool.run(lambda: (begun.wait(PATIENCE_SECONDS), release.wait(PATIENCE_SECONDS)), results.then)
            begun.wait(PATIENCE_SECONDS)
        for _ in range(10):
            pool.run(lambda: None, results.then)
        pool.close()
        release.set()
        for thread in codec_threads():
            thread.join(PATIENCE_SECONDS)
        for _ in range(5):
            await asyncio.sleep(0)
    assert results.ends == []
    assert caplog.messages == []


async def test_closing_does_not_wait_for_a_job() -> None:
    release, ended = threading.Event(), threading.Event()
    with codec_pool(1) as pool:
        pool.run(lambda: (release.wait(PATIENCE_SECONDS), ended.set()), Results().then)
        pool.close()
        assert not ended.is_set()
        release.set()


def test_a_loop_that_is_closed_meanwhile_is_no_accident(
    unraisable: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    async def leave_a_job_behind() -> list[threading.Thread]:
        pool = CodecPool(1)
        pool.run(lambda: release.wait(PATIENCE_SECONDS), Results().then)
        pool.close()
        return codec_threads()

    threads = asyncio.run(leave_a_job_behind())
    release.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert caplog.messages == unraisable == []


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(str(args.exc_value)))
    return found
