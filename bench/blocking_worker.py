"""One rank of the blocking benchmark: two rings in the same process, one awaited and one waited for, taking turns."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvloop

import ringwide

USUAL_SWITCH_SECONDS = 0.005
Array = Any
Turn = Callable[[Array, int], float]


def calls_per_turn(nbytes: int) -> int:
    return 200 if nbytes <= 2**17 else 20


def median(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]


def awaited(loop: asyncio.AbstractEventLoop, ring: ringwide.Ring) -> Turn:
    async def calls(array: Array, count: int) -> float:
        seconds = []
        await ring.barrier()
        for _ in range(count):
            began = time.perf_counter()
            await ring.allreduce(array)
            seconds.append(time.perf_counter() - began)
        return median(seconds)

    return lambda array, count: loop.run_until_complete(calls(array, count))


def waited_for(ring: ringwide.BlockingRing) -> Turn:
    def calls(array: Array, count: int) -> float:
        seconds = []
        ring.barrier()
        for _ in range(count):
            began = time.perf_counter()
            ring.allreduce(array)
            seconds.append(time.perf_counter() - began)
        return median(seconds)

    return calls


def beside_python(turn: Turn, switch_seconds: float) -> Turn:
    """The same, while another thread counts."""

    def calls(array: Array, count: int) -> float:
        before = sys.getswitchinterval()
        sys.setswitchinterval(switch_seconds)
        try:
            with a_thread_that_counts():
                return turn(array, max(4, count // 20))
        finally:
            sys.setswitchinterval(before)

    return calls


@contextmanager
def a_thread_that_counts() -> Iterator[None]:
    enough = threading.Event()

    def count() -> None:
        number = 0
        while not enough.is_set():
            number += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def measure(ways: dict[str, Turn], nbytes: int, rounds: int) -> dict[str, Any]:
    array = np.ones(nbytes // 4, np.float32)
    turns: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            taken = ways[name](array, calls_per_turn(nbytes))
            if number:  # the first round warms up
                turns[name].append(taken)
    return {"bytes": nbytes, "seconds": turns}


def main(task: dict[str, Any]) -> None:
    own, behind = task["peers"]
    loop = uvloop.new_event_loop()
    joining = ringwide.join(rank=task["rank"], peers=own)
    ring = loop.run_until_complete(joining.__aenter__())
    with ringwide.join_blocking(rank=task["rank"], peers=behind) as blocking:
        waiting, quick = waited_for(blocking), sys.getswitchinterval()
        ways = {
            "awaited": awaited(loop, ring),
            "blocking": waiting,
            f"blocking, beside Python, switch interval {USUAL_SWITCH_SECONDS * 1e3:g} ms": beside_python(
                waiting, USUAL_SWITCH_SECONDS
            ),
            f"blocking, beside Python, switch interval {quick * 1e3:g} ms": beside_python(waiting, quick),
        }
        cells = [measure(ways, nbytes, task["rounds"]) for nbytes in task["sizes"]]
    loop.run_until_complete(joining.__aexit__(None, None, None))
    loop.close()
    print(json.dumps(cells))


if __name__ == "__main__":
    main(json.load(sys.stdin))
