"""Calls of a ring: each takes its place in the order when it is made, whatever becomes of it afterwards."""

import asyncio
import gc
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import torch

import ringwide
from local_ring import error_of, on_every_rank
from ringwide import Ring

ROUNDS = 50
SMALL, BULK = 4, 100_000
"""Elements: one goes by the tree, the other round the ring in several segments."""


def of(ring: Ring, value: float, count: int = SMALL) -> Any:
    """What this rank brings: the sum over two ranks is `2 * value + 1`."""
    return np.full(count, value + ring.rank, np.float64)


async def sums_of(calls: Awaitable[list[Any]]) -> list[float]:
    return [float(array[0]) for array in await calls]


# -- a place when it is made


@pytest.mark.parametrize("count", [SMALL, BULK])
async def test_a_task_beside_two_awaits(count: int) -> None:
    async def act(ring: Ring) -> None:
        for _ in range(ROUNDS if count == SMALL else 5):
            task = asyncio.create_task(ring.allreduce(of(ring, 10, count), "sum"))
            b = await ring.allreduce(of(ring, 20, count), "sum")
            c = await ring.allreduce(of(ring, 30, count), "sum")
            assert [float(array[0]) for array in (await task, b, c)] == [21, 41, 61]

    await on_every_rank(2, act)


async def test_made_in_one_order_and_awaited_in_another() -> None:
    async def act(ring: Ring) -> None:
        calls = [ring.allreduce(of(ring, 10 * n), "sum") for n in range(5)]
        awaited = calls if ring.rank else calls[::-1]
        sums = [float((await call)[0]) for call in awaited]
        assert (sums if ring.rank else sums[::-1]) == [1, 21, 41, 61, 81]

    await on_every_rank(2, act)


async def cancelled_task(call: Awaitable[Any]) -> None:
    task = asyncio.ensure_future(call)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def timed_out(call: Awaitable[Any]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call, 0)


async def with_a_failing_sibling(call: Awaitable[Any]) -> None:
    async def fail() -> None:
        raise LookupError

    with pytest.raises(ExceptionGroup):  # noqa: PT012
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(call)  # type: ignore[arg-type]


async def closed(call: Any) -> None:
    call.close()


async def dropped(call: Any) -> None:
    """By the caller too: it keeps no reference."""


async def thrown_into(call: Any) -> None:
    with pytest.raises(LookupError):
        call.throw(LookupError("by the program"))


WAYS_OUT = {
    "cancelled before its first turn": (cancelled_task, "its task was cancelled"),
    "out of time before its first turn": (timed_out, "its task was cancelled"),
    "beside a sibling that fails": (with_a_failing_sibling, "its task was cancelled"),
    "closed": (closed, "it was closed"),
    "dropped": (dropped, "it was never awaited"),
    "interrupted": (thrown_into, "it was interrupted by LookupError"),
}


async def aborted_or_right(call: Awaitable[Any], mine: Any, reason: str) -> None:
    """The second, if all that rank 0 owed to this one had left when it was given up there."""
    try:
        await call
    except ringwide.CollectiveAborted as error:
        assert (error.by, error.reason, error.number) == (0, reason, 2)  # noqa: PT017 - or it succeeds
        assert (mine == 11).all()
    else:
        assert (mine == 21).all()


@pytest.mark.filterwarnings("ignore:a call of a ring was never awaited")
@pytest.mark.parametrize("count", [SMALL, BULK])
@pytest.mark.parametrize("way", WAYS_OUT)
async def test_a_call_that_nobody_waits_for_has_its_place_all_the_same(way: str, count: int) -> None:
    out, reason = WAYS_OUT[way]

    async def act(ring: Ring) -> None:
        mine = of(ring, 10, count)
        if ring.rank == 0:
            await out(ring.allreduce(mine, "sum"))
        else:
            await aborted_or_right(ring.allreduce(mine, "sum"), mine, reason)
        for value in (10, 20):
            assert (await ring.allreduce(of(ring, value, count), "sum"))[0] == 2 * value + 1
        assert ring.rank or (mine == 10).all()

    await on_every_rank(2, act)


async def test_a_call_that_is_never_awaited_is_told_of() -> None:
    async def act(ring: Ring) -> None:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            ring.barrier()
            gc.collect()
        assert ["never awaited" in str(one.message) for one in told] == [True]

    await on_every_rank(1, act)


async def test_a_call_that_has_timed_out_is_over() -> None:
    timed_out = asyncio.Event()

    async def act(ring: Ring) -> None:
        if ring.rank == 0:
            call = ring.allreduce(of(ring, 10))
            for error in (TimeoutError, RuntimeError):
                with pytest.raises(error):
                    await asyncio.wait_for(call, 0.01)
            timed_out.set()
        else:
            await timed_out.wait()
            assert isinstance(await error_of(ring.allreduce(of(ring, 10))), ringwide.CollectiveAborted)
        assert (await ring.allreduce(of(ring, 20), "sum"))[0] == 41

    await on_every_rank(2, act)


async def test_a_call_is_awaited_once() -> None:
    async def act(ring: Ring) -> None:
        call = ring.barrier()
        await call
        with pytest.raises(RuntimeError, match="awaited already"):
            await call

    await on_every_rank(1, act)


# -- what fails here has its place too

READ_ONLY = np.zeros(SMALL)
READ_ONLY.flags.writeable = False
REFUSED: dict[str, tuple[Callable[[Ring], Awaitable[Any]], type[Exception]]] = {
    "a read-only array": (lambda ring: ring.allreduce(READ_ONLY), ValueError),
    "something else": (lambda ring: ring.allreduce("tensors"), TypeError),
    "another dtype": (lambda ring: ring.allreduce(np.zeros(SMALL, complex)), TypeError),
    "a masked array": (lambda ring: ring.allreduce(np.ma.zeros(SMALL)), TypeError),
    "a bad operation": (lambda ring: ring.allreduce(np.zeros(SMALL), "median"), ValueError),
    "a bad root": (lambda ring: ring.broadcast(np.zeros(SMALL), root=7), ValueError),
    "a root of none": (lambda ring: ring.reduce(np.zeros(SMALL), root=-1), ValueError),
    "no room": (lambda ring: ring.all_gather(np.zeros(SMALL), into=np.zeros(SMALL)), ValueError),
    "a place that does not fit": (lambda ring: ring.reduce_scatter(np.zeros(SMALL), into=np.zeros(1)), ValueError),
    "an exchange with nobody": (lambda ring: ring.exchange([], []), ValueError),
    "an error of one's own": (lambda ring: ring.refused(LookupError("no data")), LookupError),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_call_that_cannot_begin_uses_up_its_number(what: str) -> None:
    begin, kind = REFUSED[what]

    async def act(ring: Ring) -> None:
        for number in (2, 4):
            error = await error_of(begin(ring) if ring.rank == 0 else ring.allreduce(of(ring, 10), "sum"))
            if ring.rank == 0:
                assert isinstance(error, kind)
            else:
                assert isinstance(error, ringwide.CollectiveAborted)
                assert (error.by, error.number) == (0, number)
            assert (await ring.allreduce(of(ring, 20), "sum"))[0] == 41

    await on_every_rank(2, act, messages=True)


async def test_a_call_in_another_thread_is_refused_and_counted() -> None:
    async def act(ring: Ring) -> None:
        if ring.rank == 0:
            with pytest.raises(RuntimeError, match="thread"):
                await asyncio.to_thread(ring.allreduce, of(ring, 10))
        else:
            assert isinstance(await error_of(ring.allreduce(of(ring, 10))), ringwide.CollectiveAborted)
        assert (await ring.allreduce(of(ring, 20), "sum"))[0] == 41

    await on_every_rank(2, act)


async def test_a_call_outside_of_any_task_is_refused_but_on_a_channel() -> None:
    async def act(ring: Ring) -> None:
        calls: list[Any] = []
        for channel in ("", "timer"):
            asyncio.get_running_loop().call_soon(lambda name=channel: calls.append(ring.barrier(channel=name)))
            await asyncio.sleep(0)
        assert isinstance(await error_of(calls[0]), RuntimeError)
        await calls[1]

    await on_every_rank(2, act)


async def test_a_call_that_is_made_while_another_one_is_comes_after_it() -> None:
    """A mapping may run any code when it is read."""

    class Calling(dict[str, Any]):
        inner: Any = None

        def __getitem__(self, name: str) -> Any:
            if self.inner is None:
                self.inner = self.ring.allreduce(of(self.ring, 20), "sum")
            return super().__getitem__(name)

    async def act(ring: Ring) -> None:
        tensors = Calling(x=of(ring, 10))
        tensors.ring = ring  # type: ignore[attr-defined]
        await ring.allreduce(tensors if ring.rank else {"x": tensors.pop("x")}, "sum")
        inner = tensors.inner or ring.allreduce(of(ring, 20), "sum")
        assert (await inner)[0] == 41

    await on_every_rank(2, act)


# -- calls of several tasks


async def looping(ring: Ring, value: float, channel: str) -> None:
    for step in range(ROUNDS):
        if (step + ring.rank) % 3 == 0:
            await asyncio.sleep(0)
        assert (await ring.allreduce(of(ring, value + step), "sum", channel=channel))[0] == 2 * (value + step) + 1


@pytest.mark.parametrize("count", [SMALL, BULK])
async def test_tasks_with_a_channel_each_have_an_order_each(count: int) -> None:
    async def loop(ring: Ring, value: float, channel: str) -> None:
        for step in range(ROUNDS if count == SMALL else 5):
            if (step + ring.rank) % 3 == 0:
                await asyncio.sleep(0)
            reduced = await ring.allreduce(of(ring, value + step, count), "sum", channel=channel)
            assert (reduced == 2 * (value + step) + 1).all()

    async def act(ring: Ring) -> None:
        names = ["a", "b", ""] if ring.rank else ["", "b", "a"]
        await asyncio.gather(*(loop(ring, 1000 * len(name) + ord(name or "0"), name) for name in names if name))
        await ring.barrier()

    await on_every_rank(2, act)


async def test_tasks_that_share_a_channel_get_right_sums_or_hear_of_it() -> None:
    async def act(ring: Ring) -> list[str]:
        found = await asyncio.gather(*(looping(ring, 1000 * n, "") for n in range(2)), return_exceptions=True)
        return [type(one).__name__ for one in found]

    for ends in await on_every_rank(2, act):
        assert set(ends) <= {"NoneType", "CollectiveMismatch"}


async def test_who_is_first_may_differ_and_is_heard_of() -> None:
    """Two tasks of one function, of which another one is first on each rank: their calls look alike but for that."""

    async def once(ring: Ring, turns: int, value: float) -> float:
        for _ in range(turns):
            await asyncio.sleep(0)
        return float((await ring.allreduce(of(ring, value), "sum"))[0])

    async def act(ring: Ring) -> None:
        tasks = [asyncio.create_task(once(ring, turns, 10 * turns)) for turns in ((0, 3) if ring.rank else (3, 0))]
        for task in tasks:
            error = await error_of(task)
            assert isinstance(error, ringwide.CollectiveMismatch)
            assert "channel=" in str(error)
        assert (await ring.allreduce(of(ring, 20), "sum"))[0] == 41

    await on_every_rank(2, act)


async def test_the_task_factory_of_the_loop_is_put_back() -> None:
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()

    async def act(ring: Ring) -> None:
        assert loop.get_task_factory() is not before
        await ring.barrier()

    await on_every_rank(2, act)
    assert loop.get_task_factory() is before


@pytest.mark.parametrize("channel", [5, None, ["a"]])
async def test_a_channel_that_is_no_string_uses_up_a_number(channel: Any) -> None:
    async def act(ring: Ring) -> None:
        if ring.rank == 0:
            assert isinstance(await error_of(ring.barrier(channel=channel)), TypeError)
        else:
            assert isinstance(await error_of(ring.barrier()), ringwide.CollectiveAborted)
        assert (await ring.allreduce(of(ring, 20), "sum"))[0] == 41

    await on_every_rank(2, act)


async def test_a_task_that_does_not_descend_from_the_one_that_joined_needs_a_channel() -> None:
    here: dict[int, Ring] = {}
    joined = asyncio.Event()

    async def worker(rank: int, channel: str) -> Any:
        await joined.wait()
        return await here[rank].allreduce(of(here[rank], 10), "sum", channel=channel)

    tasks = [asyncio.create_task(worker(rank, channel)) for channel in ("", "own") for rank in range(2)]

    async def act(ring: Ring) -> None:
        here[ring.rank] = ring
        if len(here) == 2:
            joined.set()
        assert isinstance(await error_of(tasks[ring.rank]), RuntimeError | ringwide.CollectiveAborted)
        assert (await tasks[2 + ring.rank])[0] == 21

    await on_every_rank(2, act)


async def test_a_second_ring_counts_tasks_anew() -> None:
    """As where one rank joins again and another was restarted."""

    async def step(ring: Ring) -> Any:
        return await ring.allreduce(of(ring, 10), "sum")

    async def act(ring: Ring) -> None:
        for _ in range(ring.rank):
            await asyncio.create_task(asyncio.sleep(0))
        assert (await asyncio.create_task(step(ring)))[0] == 21

    for _ in range(2):
        await on_every_rank(2, act)


async def test_bulk_on_the_default_channel_does_not_block_that_of_another() -> None:
    count = 2_000_000

    async def act(ring: Ring) -> None:
        a, b = of(ring, 10, count), of(ring, 20, count)
        if ring.rank == 0:
            await asyncio.gather(ring.allreduce(a, "sum"), ring.allreduce(b, "sum", channel="x"))
        else:
            await ring.allreduce(b, "sum", channel="x")
            await ring.allreduce(a, "sum")
        assert (a == 21).all()
        assert (b == 41).all()

    await on_every_rank(2, act, same_host="tcp")


async def test_an_exchange_on_any_channel() -> None:
    async def act(ring: Ring) -> None:
        for name in ("c0", "c1", "c2", "c3"):
            incoming = [np.zeros(3) for _ in range(2)]
            await ring.exchange([of(ring, 10, 3)] * 2, incoming, channel=name)
            assert [part[0] for part in incoming] == [10, 11]

    await on_every_rank(2, act, messages=True)


# -- the caller's memory


async def test_memory_that_is_twice_in_one_call_ends_alike_on_all_ranks() -> None:
    async def act(ring: Ring) -> bytes:
        array = np.arange(6, dtype=np.float32) + ring.rank
        await ring.allreduce({"x": array, "y": array.view(np.int32)}, "sum")
        return array.tobytes()

    first, second = await on_every_rank(2, act)
    assert first == second


@pytest.mark.parametrize("count", [SMALL, BULK])
async def test_memory_of_an_open_call_is_refused_to_another(count: int) -> None:
    async def act(ring: Ring) -> None:
        array = of(ring, 10, count)
        calls = [ring.allreduce(array, "sum"), ring.allreduce(array[1:], "sum")]
        assert isinstance(await error_of(calls[1]), ringwide.TensorInUse | ringwide.CollectiveAborted)
        await calls[0]
        assert (array == 21).all()
        await ring.allreduce(array, "sum")
        assert (array == 42).all()

    await on_every_rank(2, act)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
async def test_memory_that_an_open_call_writes_is_not_read_by_another(name: str) -> None:
    async def act(ring: Ring) -> None:
        array = of(ring, 10, BULK)
        calls = [ring.allreduce(array, "sum"), getattr(ring, name)(array), ring.reduce(array, root=1 - ring.rank)]
        for call in calls[1:]:
            assert isinstance(await error_of(call), ringwide.TensorInUse | ringwide.CollectiveAborted)
        await calls[0]
        assert (array == 21).all()

    await on_every_rank(2, act)


async def test_memory_that_is_only_read_may_be_read_by_several() -> None:
    async def act(ring: Ring) -> None:
        array = of(ring, 10)
        found = await asyncio.gather(ring.all_gather(array), ring.all_gather(array), ring.broadcast(array, root=0))
        assert [part[0] for part in found[0]] == [10, 11]
        assert found[2][0] == 10

    await on_every_rank(2, act)


async def test_strided_neighbours_are_no_overlap() -> None:
    async def act(ring: Ring) -> None:
        array = of(ring, 10, 8)
        await asyncio.gather(ring.allreduce(array[::2], "sum"), ring.allreduce(array[1::2], "sum"))
        assert (array == 21).all()

    await on_every_rank(2, act)


async def test_what_is_gathered_may_overlap_with_where_it_goes() -> None:
    async def act(ring: Ring) -> None:
        into = torch.arange(20, dtype=torch.float64) + 100 * ring.rank
        await ring.all_gather(into[5:15], into=into)
        assert into.tolist() == [*range(5, 15), *range(105, 115)]

    await on_every_rank(2, act)


@pytest.mark.parametrize("count", [SMALL, BULK])
async def test_a_result_is_written_into_all_tensors_or_into_none(count: int) -> None:
    """Whatever becomes of the flags of an array while its call is open."""

    async def act(ring: Ring) -> None:
        first, second = of(ring, 10, count), of(ring, 20, count)
        call = ring.allreduce([first, second], "sum")
        second.flags.writeable = False
        await call
        assert (first == 21).all()
        assert (second == 41).all()

    await on_every_rank(2, act)


async def test_a_tensor_with_another_shape_by_then_changes_nothing() -> None:
    async def act(ring: Ring) -> None:
        first, second = torch.full((4,), 10.0), torch.full((4,), 20.0)
        lone = torch.full((4,), 5, dtype=torch.int64)
        call = ring.allreduce([first, second, lone], "sum")
        if ring.rank == 0:
            second.resize_(2)
            assert isinstance(await error_of(call), RuntimeError)
            assert (first == 10).all()
            assert (lone == 5).all()
        else:
            await call

    await on_every_rank(2, act)


async def test_a_call_that_is_awaited_on_another_loop_is_given_up() -> None:
    async def act(ring: Ring) -> None:
        mine = of(ring, 10)
        call = ring.allreduce(mine, "sum")
        if ring.rank == 0:
            found = await asyncio.to_thread(lambda: asyncio.run(error_of(call)))
            assert isinstance(found, RuntimeError)
            assert "another event loop" in str(found)
        else:
            await aborted_or_right(call, mine, "it was awaited on another event loop")
        assert ring.rank or (mine == 10).all()
        assert (await ring.allreduce(of(ring, 20), "sum"))[0] == 41

    await on_every_rank(2, act)


@pytest.mark.filterwarnings("ignore:a call of a ring was never awaited")
async def test_a_call_that_another_thread_drops_is_given_up() -> None:
    async def act(ring: Ring) -> None:
        if ring.rank == 0:
            calls = [ring.allreduce(of(ring, 10))]
            thread = threading.Thread(target=calls.clear)
            thread.start()
            await asyncio.to_thread(thread.join)
        else:
            assert isinstance(await error_of(ring.allreduce(of(ring, 10))), ringwide.CollectiveAborted)
        assert (await ring.allreduce(of(ring, 20), "sum"))[0] == 41

    await on_every_rank(2, act)


# -- errors


async def test_every_call_of_a_ring_that_is_over_raises_an_error_of_its_own() -> None:
    over = asyncio.Event()

    async def act(ring: Ring) -> None:
        if ring.rank == 0:
            return
        over.set()
        errors = [await error_of(ring.allreduce(of(ring, 10))) for _ in range(20)]
        assert {type(error) for error in errors} == {ringwide.PeerLeft}
        assert len(set(map(id, errors))) == 20
        assert all(len(_frames(error)) < 12 for error in errors)

    await on_every_rank(2, act, stay=False)


def _frames(error: BaseException) -> list[Any]:
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


async def test_messages_leave_nothing_for_the_collector() -> None:
    async def act(ring: Ring) -> None:
        gc.collect()
        gc.disable()
        try:
            sent, received = of(ring, 10), of(ring, 0)
            alive = [weakref.ref(sent), weakref.ref(received)]
            await asyncio.gather(ring.send(sent, to=1 - ring.rank), ring.receive(received, 1 - ring.rank))
            await ring.exchange([sent, sent], [received, received.copy()])
            del sent, received
            await asyncio.sleep(0)
            assert [one() for one in alive] == [None, None]
        finally:
            gc.enable()

    await on_every_rank(2, act, messages=True)


async def test_a_call_that_failed_leaves_nothing_for_the_collector() -> None:
    async def act(ring: Ring) -> None:
        gc.disable()
        try:
            array = of(ring, 10)
            alive = weakref.ref(array)
            try:
                if ring.rank:
                    await ring.allreduce(array)
                else:
                    await ring.refused(LookupError("no data"))
            except (ringwide.CollectiveAborted, LookupError):
                pass
            del array
            await asyncio.sleep(0)
            assert alive() is None
        finally:
            gc.enable()

    await on_every_rank(2, act)
