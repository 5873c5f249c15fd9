"""Waiting for an operation, and for several that were asked for together."""

import asyncio
from datetime import timedelta

import pytest

from ringwide.runtime.background_loop import background
from ringwide.torch.work import RingWork

SHORT, LONG = timedelta(milliseconds=10), timedelta(seconds=60)


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def _fail() -> None:
    raise LookupError("not here")


def test_a_wait_that_is_too_short_is_a_runtime_error_and_the_work_goes_on() -> None:
    """As with gloo: programs catch that."""
    pendings = [background().start(_for_ever) for _ in range(2)]
    work = RingWork(pendings, [])
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"not ended within 0\.01 s; it continues"):
            work.wait(SHORT)
    assert not work.is_completed()
    for pending in pendings:
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            pending.wait(60)


def test_a_future_that_was_given_up_says_so() -> None:
    pending = background().start(_for_ever)
    future = RingWork([pending], []).get_future()
    pending.cancel()
    with pytest.raises(RuntimeError, match="CancelledError: this rank has given it up"):
        future.wait()


@pytest.mark.parametrize("timeout", [timedelta(0), LONG])
def test_an_error_reaches_who_waits_with_a_timeout_and_without(timeout: timedelta) -> None:
    with pytest.raises(LookupError, match="not here"):
        RingWork([background().start(_fail)], []).wait(timeout)
