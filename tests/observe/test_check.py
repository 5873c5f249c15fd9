import itertools
from typing import Any

import numpy
import pytest

from ringwide.observe.check import DTYPES, MIB, OPS, Row, cases, check, header, line, verdict


class RingOfOne:
    """The reduction over one rank is what it gave; `breakage` spoils it."""

    rank, size = 0, 1

    def __init__(self, breakage: Any = lambda tensor, op: None) -> None:
        self.breakage = breakage
        self.reduced: list[tuple[int, str]] = []

    async def allreduce(self, tensors: Any, op: str = "mean") -> Any:
        self.reduced.append((len(tensors), op))
        self.breakage(tensors, op)
        return tensors

    async def broadcast(self, tensors: Any, root: int = 0) -> Any:
        return tensors

    async def all_gather(self, tensor: Any) -> list[Any]:
        return [tensor.copy(), tensor.copy()]

    def algorithm_for(self, nbytes: int) -> str:
        return "ring" if nbytes > 100 else "tree"


async def rows_of(ring: RingOfOne, sizes: list[int], seconds: float = 0.0) -> list[Row]:
    seen: list[Row] = []
    ticks = itertools.count(0.0, 0.5)
    rows = await check(ring, sizes, seconds_per_size=seconds, on_row=seen.append, clock=lambda: next(ticks))
    assert seen == rows
    return rows


def test_every_size_is_measured_and_every_dtype_and_op_is_tried() -> None:
    planned = list(cases([16 * MIB, 4096, MIB]))
    assert [case.nbytes for case in planned if case.timed] == [4096, MIB, 16 * MIB]
    for nbytes in (4096, MIB):
        assert {case.dtype for case in planned if case.nbytes == nbytes and case.op == "sum"} == set(DTYPES)
        assert {case.op for case in planned if case.nbytes == nbytes and case.dtype == "float32"} == set(OPS)
    assert [case for case in planned if case.nbytes == 16 * MIB and not case.timed] == []


def test_one_large_size_still_tries_everything() -> None:
    assert len({(case.dtype, case.op) for case in cases([64 * MIB])}) == len(DTYPES) + len(OPS) - 1


def test_a_size_smaller_than_an_element_is_one_element() -> None:
    assert [case.count for case in cases([1]) if case.dtype == "float64"] == [1]


async def test_a_right_ring_has_no_wrong_elements() -> None:
    rows = await rows_of(RingOfOne(), [4096])
    assert [row.wrong for row in rows] == [0] * len(rows)


async def test_one_wrong_element_is_counted_here_and_everywhere() -> None:
    def spoil(tensor: Any, op: str) -> None:
        if op == "max":
            tensor[5] += 1

    rows = await rows_of(RingOfOne(spoil), [4096])
    assert [(row.op, row.wrong_here, row.wrong) for row in rows if row.wrong] == [("max", 1, 2)]
    assert verdict(0, 1, rows).endswith("WRONG: 2 elements on all ranks, 1 on this one")


async def test_a_ring_that_is_right_only_once_is_found_out() -> None:
    calls = itertools.count()

    def spoil_later(tensor: Any, op: str) -> None:
        if next(calls) > 0:
            tensor[0] += 1

    rows = await rows_of(RingOfOne(spoil_later), [4])
    assert rows[0].wrong_here == 1


async def test_rank_0_decides_how_often() -> None:
    class Follower(RingOfOne):
        async def broadcast(self, tensors: Any, root: int = 0) -> Any:
            tensors[:] = 7
            return tensors

    ring = Follower()
    rows = await rows_of(ring, [4])
    assert {row.repeats for row in rows} == {7}
    assert len(ring.reduced) == len(rows) * 9  # one to warm up, one to estimate


@pytest.mark.parametrize(("seconds", "repeats"), [(0.0, 3), (5.0, 10), (1e9, 2000)])
async def test_the_repeats_fill_the_time_but_stay_bounded(seconds: float, repeats: int) -> None:
    rows = await rows_of(RingOfOne(), [4], seconds)
    assert rows[0].repeats == repeats


async def test_bandwidths_follow_from_the_time() -> None:
    ring = RingOfOne()
    row = (await rows_of(ring, [4096]))[0]
    assert (row.seconds, row.algbw, row.busbw, row.algorithm) == (0.5, 8192.0, 0.0, "ring")
    four = RingOfOne()
    four.size = 4
    with numpy.errstate(all="raise"):
        assert (await rows_of(four, [4096]))[0].busbw == 8192.0 * 1.5


async def test_bfloat16_is_left_out_if_a_rank_has_no_torch() -> None:
    class BesideNumpy(RingOfOne):
        async def all_gather(self, tensor: Any) -> list[Any]:
            return [tensor.copy(), tensor * 0]  # the other rank: no torch, and nothing wrong

    rows = await rows_of(BesideNumpy(), [4096])
    assert {row.dtype for row in rows} == set(DTYPES) - {"bfloat16"}
    assert verdict(0, 2, rows).endswith("all right; bfloat16 needs torch on every rank")
    assert verdict(0, 1, await rows_of(RingOfOne(), [4096])).endswith("all right")


def test_the_columns_stand_below_their_names() -> None:
    row = Row(
        nbytes=4 << 30,
        count=1 << 30,
        dtype="bfloat16",
        op="prod",
        algorithm="tree",
        repeats=3,
        seconds=12.3456789,
        algbw=1.5e9,
        busbw=2.25e9,
        wrong_here=0,
        wrong=0,
    )
    names, units = header().splitlines()
    printed = line(row)
    assert len(printed) == len(names)
    assert " ".join(printed.split()) == "4294967296 1073741824 bfloat16 prod tree 12345678.9 1.500 2.250 0"
    for name, value in [("time", "12345678.9"), ("algbw", "1.500"), ("wrong", "0")]:
        assert names.index(name) + len(name) == printed.rindex(value) + len(value)
    assert units.split() == ["#", "(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)"]
