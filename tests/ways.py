"""Files of src/ringwide that a call passes, found by profiling it, and the lists of them in docs/design.md.

    python -m tests.ways    writes both lists anew

Calls are warm: the same tensors were reduced before. Both ranks are on one event loop, so what the other does meanwhile
is seen as well. A file counts if most of a few calls pass it; a timer that happens to fire meanwhile does not.
"""

import asyncio
import gc
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from tests.local_ring import on_every_rank
from tests.marked import DESIGN, renew
from torch.distributed import HashStore
from torch.nn.parallel import DistributedDataParallel

import ringwide
from ringwide.runtime.background_loop import background
from ringwide.torch.init_group import form

SOURCE = Path(ringwide.__file__).parent
SMALL, DDP = "files: small all-reduce", "files: DDP bucket"

WARM_UP, TRACED = 10, 9
AS_A_TASK = ("runtime/caller_identity.py",)  # a call that is not over at once goes on as a task, which is noted
TRACED_RANK = 1  # it sends first, and then hears the sum
SMALL_ELEMENTS = 1024
BUCKET_WIDTH = 32  # a square of float32: 4 KiB, a small bucket; large ones leave this way at the operation


class Trace:
    """Files that are entered by the calls of some threads, in order of their first use."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.begun = threading.Event()  # the ring is called
        self._inside = f"{SOURCE}/"

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(self._inside):
            self.files.setdefault(file.removeprefix(self._inside))
            if file.endswith("/ring.py"):
                self.begun.set()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Trace this thread."""
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(None)


@contextmanager
def nothing_collected() -> Iterator[None]:
    """What a finalizer passes is not on the way."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def usual(traces: Sequence[Trace]) -> list[str]:
    """The files in most of the traces, in the order of the last."""
    times = Counter(file for trace in traces for file in trace.files)
    order = list(dict.fromkeys(file for trace in reversed(traces) for file in trace.files))
    return [file for file in order if times[file] > len(traces) / 2]


async def small_allreduce() -> list[str]:
    """From `ring.allreduce(...)` of 4 KiB to its result, over TCP."""
    traces = [Trace() for _ in range(TRACED)]

    async def act(ring: ringwide.Ring) -> None:
        numbers = np.ones(SMALL_ELEMENTS, np.float32)
        for _ in range(WARM_UP):
            await ring.allreduce(numbers)
        for trace in traces:
            with trace.on() if ring.rank == TRACED_RANK else nullcontext():
                await ring.allreduce(numbers)

    with nothing_collected():
        await on_every_rank(2, act, same_host="tcp")  # shared memory has a file more, transport/shm_lane.py
    return usual(traces)


def ddp_bucket() -> list[str]:
    """From DDP's call in the backward pass to the end of that pass, on the calling thread and on the loop's."""
    traces = [Trace() for _ in range(TRACED)]
    store, together = HashStore(), threading.Barrier(2, timeout=60)

    def rank(number: int) -> None:
        group = form(store, rank=number, size=2)
        model = DistributedDataParallel(torch.nn.Linear(BUCKET_WIDTH, BUCKET_WIDTH, bias=False), process_group=group)
        for step in range(-WARM_UP, TRACED):
            loss = model(torch.ones(1, BUCKET_WIDTH)).sum()
            together.wait()
            if step < 0:
                loss.backward()
            elif number == TRACED_RANK:
                with on_the_loop(traces[step]), traces[step].on():
                    loss.backward()
            else:
                traces[step].begun.wait(0.05)  # less than a tick of the deadlines
                loss.backward()
        together.wait()
        group.shutdown()

    with nothing_collected(), ThreadPoolExecutor(2) as threads:
        list(threads.map(rank, range(2)))
    files = usual(traces)
    return [*files, *(file for file in AS_A_TASK if file not in files)]


@contextmanager
def on_the_loop(trace: Trace) -> Iterator[None]:
    """Trace the thread of the background loop."""
    loop = background().loop
    loop.call_soon_threadsafe(sys.setprofile, trace.profile)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(sys.setprofile, None)


def listed(files: Sequence[str]) -> str:
    """The files as they stand in the document."""
    return textwrap.fill(
        f"{len(files)} files: " + ", ".join(f"`{file}`" for file in files),
        width=120,
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    renew(DESIGN, SMALL, listed(asyncio.run(small_allreduce())))
    renew(DESIGN, DDP, listed(ddp_bucket()))
