"""Check a ring against known sums, and measure it, much as nccl-tests do."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy

from ringwide.observe.buffers import DTYPES, copied, differing, filled, overwrite
from ringwide.observe.known import expected_table, given_table

MIB = 1024 * 1024
OPS = ("sum", "mean", "min", "max", "prod")
VARIANTS_UP_TO = MIB  # every dtype and op is tried at a small size and at a middling one, not at the slow ones
MOST_REPEATS = 2000


class Ring(Protocol):
    """What the check needs of a ring."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    async def allreduce(self, tensors: Any, op: Any = "mean") -> Any: ...
    async def broadcast(self, tensors: Any, root: int = 0) -> Any: ...
    async def all_gather(self, tensor: Any) -> list[Any]: ...
    def algorithm_for(self, nbytes: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Case:
    nbytes: int
    dtype: str
    op: str
    timed: bool

    @property
    def count(self) -> int:
        return max(1, self.nbytes // DTYPES[self.dtype])


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. The times are this rank's; `wrong` counts the elements of all ranks."""

    nbytes: int
    count: int
    dtype: str
    op: str
    algorithm: str
    repeats: int
    seconds: float
    algbw: float
    busbw: float
    wrong_here: int
    wrong: int


def cases(sizes: Sequence[int]) -> Iterator[Case]:
    """float32 sums of every size, measured; every other dtype and op once at a small and at a middling size."""
    variants_at = {min(sizes), max((nbytes for nbytes in sizes if nbytes <= VARIANTS_UP_TO), default=min(sizes))}
    for nbytes in sorted(set(sizes)):
        yield Case(nbytes, "float32", "sum", timed=True)
        if nbytes in variants_at:
            yield from (Case(nbytes, dtype, "sum", timed=False) for dtype in DTYPES if dtype != "float32")
            yield from (Case(nbytes, "float32", op, timed=False) for op in OPS if op != "sum")


async def check(
    ring: Ring,
    sizes: Sequence[int],
    *,
    seconds_per_size: float,
    on_row: Callable[[Row], None],
    clock: Callable[[], float] = time.perf_counter,
) -> list[Row]:
    rows = []
    for case in cases(sizes):
        row = await _check_case(ring, case, seconds_per_size if case.timed else 0.0, clock)
        on_row(row)
        rows.append(row)
    return rows


async def _check_case(ring: Ring, case: Case, seconds: float, clock: Callable[[], float]) -> Row:
    given = filled(given_table(ring.rank, ring.size, case.op), case.count, case.dtype)
    expected = filled(expected_table(ring.size, case.op), case.count, case.dtype)
    work = copied(given)

    async def once() -> float:
        overwrite(work, given)
        started = clock()
        await ring.allreduce(work, op=case.op)
        return clock() - started

    await once()  # the first one opens links and touches pages; its time tells nothing
    wrong = differing(work, expected)
    repeats = await _agreed_repeats(ring, await once(), seconds)
    times = [await once() for _ in range(repeats)]
    wrong = max(wrong, differing(work, expected))
    return _row(ring, case, times, wrong, wrong_everywhere=await _summed(ring, wrong))


async def _agreed_repeats(ring: Ring, seconds_once: float, seconds: float) -> int:
    """All ranks must make the same calls, but each has its own clock: rank 0's decides."""
    wanted = seconds / max(seconds_once, 1e-9)
    repeats = numpy.array([min(max(int(wanted), 3), MOST_REPEATS)], dtype=numpy.int64)
    await ring.broadcast(repeats, root=0)
    return int(repeats[0])


async def _summed(ring: Ring, wrong: int) -> int:
    # Gathered and added here: the all-reduce is what is on trial.
    return sum(int(part[0]) for part in await ring.all_gather(numpy.array([wrong], dtype=numpy.int64)))


def _row(ring: Ring, case: Case, times: Sequence[float], wrong: int, wrong_everywhere: int) -> Row:
    nbytes = case.count * DTYPES[case.dtype]
    seconds = statistics.median(times)
    algbw = nbytes / seconds
    return Row(
        nbytes=nbytes,
        count=case.count,
        dtype=case.dtype,
        op=case.op,
        algorithm=ring.algorithm_for(nbytes),
        repeats=len(times),
        seconds=seconds,
        algbw=algbw,
        # What each link carried: 2(n-1)/n of the data, so that rings of different sizes can be compared.
        busbw=algbw * 2 * (ring.size - 1) / ring.size,
        wrong_here=wrong,
        wrong=wrong_everywhere,
    )
