"""Where segments are encoded and decoded: jobs that run beside the event loop, or between its events.

Rules:
- A job is handed in and its result comes back later, on the event loop: nobody who receives ever waits for a job.
- Jobs of different segments are independent, so they may end in another order than they were handed in.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Protocol

Job = Callable[[], Any]
Then = Callable[[Any, Exception | None], None]
"""Called with a job's result, or with the reason why there is none."""
Settle = Callable[[], object]
"""Returns when the job is not running and never will be, unless it says by itself that it is not needed."""


class WorkshopLike(Protocol):
    """What a collective needs of a workshop; the simulator has its own."""

    def run(self, job: Job, then: Then) -> Settle: ...


class Workshop:
    """Some threads; or none, and the event loop does one job at a time, with its other events between them."""

    def __init__(self, threads: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[tuple[Job, Then]] = deque()
        self._closed = False
        self.staff(threads)

    def staff(self, threads: int) -> None:
        """How many threads there are is known when it is known who else runs on this machine."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ringwide-codec") if threads else None

    def run(self, job: Job, then: Then) -> Settle:
        if self._pool is not None:
            future = self._pool.submit(job)
            future.add_done_callback(partial(self._back_to_the_loop, then))
            return partial(_cancel_or_wait, future)
        self._jobs.append((job, then))
        if len(self._jobs) == 1:
            self._loop.call_soon(self._do_one)
        return _already_settled

    def close(self) -> None:
        self._closed = True
        self._jobs.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _back_to_the_loop(self, then: Then, job: Future[Any]) -> None:
        if not self._closed and not job.cancelled():
            self._loop.call_soon_threadsafe(self._report, then, job)

    def _report(self, then: Then, job: Future[Any]) -> None:
        error = job.exception()
        if isinstance(error, Exception):
            then(None, error)
        else:
            then(job.result(), None)

    def _do_one(self) -> None:
        if not self._jobs:
            return
        job, then = self._jobs.popleft()
        if self._jobs:
            self._loop.call_soon(self._do_one)
        do_now(job, then)


def _cancel_or_wait(job: Future[Any]) -> None:
    if not job.cancel():
        wait([job])


def _already_settled() -> None:
    """On the event loop, where the question is asked, no job is running."""


def do_now(job: Job, then: Then) -> None:
    try:
        result = job()
    except Exception as error:
        then(None, error)
    else:
        then(result, None)
