"""Check of a ring against known sums, with its speed measured, much as nccl-tests does."""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy
from numpy.typing import NDArray

from ringwide.errors import has_torch
from ringwide.tensors.arithmetic import sum_itemsize

DTYPES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}
NEEDS_TORCH = "bfloat16"  # numpy has none
MIB = 1024 * 1024
OPS = ("sum", "mean", "min", "max", "prod")
VARIANTS_UP_TO = MIB  # every dtype and op is checked at a small and a medium size, not at the slow ones
MOST_REPEATS = 2000


class CheckedRing(Protocol):
    """Ring as the check needs it."""

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
    """One all-reduce to check, and to measure if `timed`."""

    nbytes: int
    dtype: str
    op: str
    timed: bool

    @property
    def count(self) -> int:
        return max(1, self.nbytes // DTYPES[self.dtype])


@dataclass(frozen=True, slots=True)
class Row:
    """Line of the table. The times are those of this rank; `wrong` counts elements on all ranks."""

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
    """float32 sums of every size, timed; every other dtype and op once at a small and at a medium size."""
    variants_at = {min(sizes), max((nbytes for nbytes in sizes if nbytes <= VARIANTS_UP_TO), default=min(sizes))}
    for nbytes in sorted(set(sizes)):
        yield Case(nbytes, "float32", "sum", timed=True)
        if nbytes in variants_at:
            yield from (Case(nbytes, dtype, "sum", timed=False) for dtype in DTYPES if dtype != "float32")
            yield from (Case(nbytes, "float32", op, timed=False) for op in OPS if op != "sum")


async def check(
    ring: CheckedRing,
    sizes: Sequence[int],
    *,
    seconds_per_size: float,
    on_row: Callable[[Row], None],
    clock: Callable[[], float] = time.perf_counter,
) -> list[Row]:
    """Check every case on all ranks together. `on_row` gets each row as soon as it is known."""
    rows = []
    left_out = set() if await _all_have_torch(ring) else {NEEDS_TORCH}
    for case in cases(sizes):
        if case.dtype in left_out:
            continue
        row = await _check_case(ring, case, seconds_per_size if case.timed else 0.0, clock)
        on_row(row)
        rows.append(row)
    return rows


async def _all_have_torch(ring: CheckedRing) -> bool:
    """Whether every rank can make buffers of every dtype: all must make the same calls."""
    return all(bool(part[0]) for part in await ring.all_gather(numpy.array([has_torch()], dtype=numpy.int64)))


async def _check_case(ring: CheckedRing, case: Case, seconds: float, clock: Callable[[], float]) -> Row:
    given = filled(given_table(ring.rank, ring.size, case.op), case.count, case.dtype)
    expected = filled(expected_table(ring.size, case.op), case.count, case.dtype)
    work = copied(given)

    async def once() -> float:
        overwrite(work, given)
        started = clock()
        await ring.allreduce(work, op=case.op)
        return clock() - started

    await once()  # warm-up: the first call opens links and touches pages
    wrong = differing(work, expected)
    repeats = await _agreed_repeats(ring, await once(), seconds)
    times = [await once() for _ in range(repeats)]
    wrong = max(wrong, differing(work, expected))
    return _row(ring, case, times, wrong, wrong_everywhere=await _summed(ring, wrong))


async def _agreed_repeats(ring: CheckedRing, seconds_once: float, seconds: float) -> int:
    """Number of repeats, decided by rank 0's clock: all ranks must make the same calls."""
    wanted = seconds / max(seconds_once, 1e-9)
    repeats = numpy.array([min(max(int(wanted), 3), MOST_REPEATS)], dtype=numpy.int64)
    await ring.broadcast(repeats, root=0)
    return int(repeats[0])


async def _summed(ring: CheckedRing, wrong: int) -> int:
    # Gathered and added here, as the all-reduce itself is under test.
    return sum(int(part[0]) for part in await ring.all_gather(numpy.array([wrong], dtype=numpy.int64)))


def _row(ring: CheckedRing, case: Case, times: Sequence[float], wrong: int, wrong_everywhere: int) -> Row:
    nbytes = case.count * DTYPES[case.dtype]
    seconds = statistics.median(times)
    algbw = nbytes / seconds
    return Row(
        nbytes=nbytes,
        count=case.count,
        dtype=case.dtype,
        op=case.op,
        algorithm=ring.algorithm_for(case.count * sum_itemsize(case.dtype, "float32")),
        repeats=len(times),
        seconds=seconds,
        algbw=algbw,
        # Each link carries 2(n-1)/n of the data, which makes rings of different sizes comparable.
        busbw=algbw * 2 * (ring.size - 1) / ring.size,
        wrong_here=wrong,
        wrong=wrong_everywhere,
    )


# -- inputs and expected results: tables of one period, repeated over the buffer

PERIOD = 4093
REDUCTIONS: dict[str, numpy.ufunc] = {
    "sum": numpy.add,
    "mean": numpy.add,
    "min": numpy.minimum,
    "max": numpy.maximum,
    "prod": numpy.multiply,
}


def given_table(rank: int, size: int, op: str) -> NDArray[numpy.float64]:
    """One period of this rank's input."""
    index = numpy.arange(PERIOD)
    if op == "prod":
        # For each index one rank has a factor and the others 1: the product stays small for any number of ranks.
        return numpy.where(index % size == rank, index % 7 + 2, 1).astype(numpy.float64)
    values = (index * (2 * rank + 3) + rank) % PERIOD
    return (values % (_largest(size) + 1)).astype(numpy.float64)


def expected_table(size: int, op: str) -> NDArray[numpy.float64]:
    """One period of the result on every rank."""
    given = numpy.stack([given_table(rank, size, op) for rank in range(size)])
    reduced: NDArray[numpy.float64] = REDUCTIONS[op].reduce(given)
    # An exact quotient rounded from float64 equals the division in the narrower type.
    return reduced / size if op == "mean" else reduced


def _largest(size: int) -> int:
    # Sums up to 127 fit int8; bfloat16 is exact up to 256.
    return max(1, min(10, 127 // size))


# -- buffers of every dtype; numpy has no bfloat16, so that one is a torch tensor


def filled(table: NDArray[numpy.float64], count: int, dtype: str) -> Any:
    """Buffer of `count` elements that repeats the table."""
    if dtype != NEEDS_TORCH:
        return numpy.resize(table.astype(dtype), count)
    import torch

    return torch.from_numpy(numpy.resize(table.astype(numpy.float32), count)).to(torch.bfloat16)


def copied(buffer: Any) -> Any:
    return buffer.copy() if isinstance(buffer, numpy.ndarray) else buffer.clone()


def overwrite(buffer: Any, source: Any) -> None:
    buffer[:] = source


def differing(one: Any, other: Any) -> int:
    """Number of elements that differ."""
    return int((one != other).sum())


# -- output, in the columns of nccl-tests

COLUMNS = "{:>11} {:>11} {:>9} {:>5} {:>9} {:>11} {:>8} {:>8} {:>6}"


def header() -> str:
    names = COLUMNS.format("size", "count", "dtype", "op", "algorithm", "time", "algbw", "busbw", "wrong")
    units = COLUMNS.format("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")
    return f"#{names[1:]}\n#{units[1:].rstrip()}"


def line(row: Row) -> str:
    return COLUMNS.format(
        row.nbytes,
        row.count,
        row.dtype,
        row.op,
        row.algorithm,
        f"{row.seconds * 1e6:.1f}",
        f"{row.algbw / 1e9:.3f}",
        f"{row.busbw / 1e9:.3f}",
        row.wrong,
    )


def verdict(rank: int, size: int, rows: Sequence[Row]) -> str:
    wrong_here, wrong = sum(row.wrong_here for row in rows), sum(row.wrong for row in rows)
    found = "all right" if wrong == 0 else f"WRONG: {wrong} elements on all ranks, {wrong_here} on this one"
    missing = "" if any(row.dtype == NEEDS_TORCH for row in rows) else f"; {NEEDS_TORCH} needs torch on every rank"
    return f"rank {rank} of {size}: {len(rows)} all-reduces checked, {found}{missing}"


def document(rank: int, size: int, rows: Sequence[Row]) -> str:
    """Rows as one JSON object."""
    wrong = sum(row.wrong for row in rows)
    return json.dumps({"rank": rank, "size": size, "wrong": wrong, "rows": [asdict(row) for row in rows]}, indent=2)
