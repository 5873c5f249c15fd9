"""The loop of the background: order, results, errors, and what happens in a forked child."""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest

from ringwide.errors import RingClosed
from ringwide.runtime.background_loop import BackgroundLoop, background
from ringwide.runtime.loop_call import LoopCall


async def _value(value: int) -> int:
    return value


def test_it_is_one_for_the_whole_process() -> None:
    assert background() is background()


def test_results_and_errors_reach_whoever_waits() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError("not here")

    assert background().start(lambda: _value(7)).wait() == 7
    failing = background().start(fail)
    for _ in range(2):
        with pytest.raises(LookupError, match="not here"):
            failing.wait()
    assert failing.done
    assert isinstance(failing.error, LookupError)


def test_calls_begin_in_the_order_in_which_they_were_made() -> None:
    """Whatever they wait for later: a task would begin a round after a call that was made behind it."""
    begun: list[int] = []

    async def call(number: int) -> None:
        begun.append(number)
        await asyncio.sleep(0 if number % 2 else 0.001)

    pendings = [background().start(partial(call, number)) for number in range(50)]
    for pending in pendings:
        pending.wait()
    assert begun == list(range(50))


def test_a_call_may_use_deadlines_once_it_has_waited() -> None:
    async def late() -> str:
        await asyncio.get_running_loop().create_task(_value(1))
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(60)
        except TimeoutError:
            return "in time"
        return "never"

    assert background().start(late).wait() == "in time"


def test_one_that_does_not_end_is_not_lost() -> None:
    released = threading.Event()

    async def wait() -> str:
        while not released.is_set():  # noqa: ASYNC110 - an event of threads is no event of the loop
            await asyncio.sleep(0.001)
        return "released"

    pending = background().start(wait)
    with pytest.raises(TimeoutError, match=r"0\.001 s"):
        pending.wait(0.001)
    assert not pending.done
    released.set()
    assert pending.wait() == "released"


def test_callbacks_come_once_before_and_after_the_end() -> None:
    called: list[str] = []
    heard = threading.Event()
    future: list[asyncio.Future[int]] = []

    async def wait() -> int:
        future.append(asyncio.get_running_loop().create_future())
        return await future[0]

    behind = background()
    pending = behind.start(wait)
    pending.when_done(lambda: called.append("before"))
    pending.when_done(heard.set)
    behind.loop.call_soon_threadsafe(lambda: future[0].set_result(3))
    assert heard.wait(60)
    pending.when_done(lambda: called.append("after"))
    assert called == ["before", "after"]


@pytest.mark.parametrize("as_task", [False, True])
def test_cancelling_is_heard_inside(as_task: bool) -> None:
    cleaned = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cleaned.set()

    behind = background()
    pending: LoopCall[None] = behind.start_task(wait) if as_task else behind.start(wait)
    behind.start(lambda: _value(0)).wait()  # it has begun by now
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        pending.wait()
    assert cleaned.is_set()


class Interrupted(Exception): ...


def test_whoever_is_interrupted_leaves_nothing_under_way() -> None:
    """As by Ctrl-C: the call has ended when the exception comes out."""
    ended = threading.Event()

    async def wait() -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            background().start(wait).result()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended.is_set()


def test_what_was_left_open_is_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And told of what the program died."""
    closed: list[object] = []
    uncaught = LookupError("nobody has caught it")
    monkeypatch.setattr(sys, "last_value", uncaught, raising=False)

    def closing(name: str) -> object:
        async def close(error: BaseException | None) -> None:
            closed.extend([name, error])
            if name == "bad":
                raise RuntimeError("cannot")

        return close

    ending = BackgroundLoop()
    for name in ("bad", "closed", "good"):
        ending.close_at_exit(name, closing(name))  # type: ignore[arg-type]
    for _ in range(2):
        ending.close_now("closed")
    ending.close()
    assert closed == ["closed", None, "bad", uncaught, "good", uncaught]
    assert not ending._thread.is_alive()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_has_a_loop_of_its_own() -> None:
    assert background().start(lambda: _value(1)).wait() == 1
    child = os.fork()
    if child == 0:
        os._exit(background().start(lambda: _value(23)).wait(60))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 23


def test_nobody_waits_for_a_loop_that_has_ended() -> None:
    """What was under way fails, and so does what is asked for afterwards, also by what runs at the end of a program."""

    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    async def close(_: BaseException | None) -> None: ...

    ending = BackgroundLoop()
    under_way = [
        ending.start(wait),
        ending.start(wait, by_hand=True),
        ending.start_task(wait),
    ]
    called_back = threading.Event()
    under_way[0].when_done(called_back.set)
    ending.close_at_exit("ring", close)
    ending.close()
    for pending in (*under_way, ending.start(wait), ending.start_task(wait)):
        with pytest.raises(RingClosed, match="ended with the program"):
            pending.wait(60)
    assert called_back.is_set()
    ending.close_now("ring")  # is closed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_loop_that_something_has_ended() -> None:
    def leave() -> None:
        raise SystemExit

    ending = BackgroundLoop()
    pending = ending.start(lambda: asyncio.sleep(3600))
    ending.loop.call_soon_threadsafe(leave)
    with pytest.raises(RingClosed):
        pending.wait(60)
    ending._thread.join(60)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_call_that_is_cancelled_just_when_it_may_go_on_is_cancelled(by_hand: bool) -> None:
    """Else it would go on to its next wait, and whoever pressed Ctrl-C would wait with it."""
    first: list[asyncio.Future[None]] = []

    async def wait() -> None:
        first.append(asyncio.get_running_loop().create_future())
        await first[0]
        await asyncio.get_running_loop().create_future()

    def go_on_and_cancel() -> None:
        first[0].set_result(None)
        pending._cancel()

    pending = background().start(wait, by_hand=by_hand)
    background().loop.call_soon_threadsafe(go_on_and_cancel)
    with pytest.raises(asyncio.CancelledError):
        pending.wait(60)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parent() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    async def close(_: BaseException | None) -> None:
        await wait()

    behind = background()
    open_one = behind.start(wait)
    open_one.when_done(lambda: os._exit(1))  # what follows is for the parent to do
    behind.close_at_exit("ring", close)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        behind.close_now("ring")
        failed = [isinstance(_error_of(pending), RingClosed) for pending in (open_one, behind.start(wait))]
        os._exit(23 if failed == [True, True] else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    open_one._callbacks.clear()
    open_one.cancel()
    behind._to_close.clear()
    assert code == 23


def _error_of(pending: LoopCall[None]) -> BaseException | None:
    try:
        pending.wait()
    except BaseException as error:
        return error
    return None


def _die() -> None:
    raise LookupError("on purpose")


def _die_as_torch_does() -> None:
    try:
        _die()
    except LookupError:
        sys.exit(1)


def _live_with_a_ring(act: Callable[[], None], told: int) -> None:
    async def close(error: BaseException | None) -> None:
        os.write(told, type(error).__name__.encode())

    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - its traceback is no news
    background().close_at_exit("ring", close)
    act()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("act", "error"),
    [(int, "NoneType"), (sys.exit, "NoneType"), (_die, "LookupError"), (_die_as_torch_does, "LookupError")],
)
def test_a_process_of_multiprocessing_leaves_its_rings_too(act: Callable[[], None], error: str) -> None:
    """It ends without atexit, and the others would take that for a crash; one that crashed must not say it is done."""
    hears, told = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=_live_with_a_ring, args=(act, told))
    child.start()
    os.close(told)
    with os.fdopen(hears) as words:
        assert words.read() == error
    child.join(60)
