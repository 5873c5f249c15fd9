"""Wake-up descriptor by which the loop learns of Ctrl-C, and other users of it."""

import asyncio
import os
import signal

import pytest

from ringwide.runtime.background_loop import BackgroundLoop, background
from ringwide.torch import work


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_signal_of_a_forked_child_is_not_heard_in_its_parent() -> None:
    """A worker of a DataLoader, say: what is sent to it alone must not end collectives of the process it came from."""
    before = signal.set_wakeup_fd(-1)
    behind = background()
    try:
        work.end_calls_at_interrupts(behind)
        child = os.fork()
        if child == 0:
            os._exit(23 if signal.set_wakeup_fd(-1) == -1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 23
        assert signal.set_wakeup_fd(-1) != -1, "the parent still has its own"
    finally:
        signal.set_wakeup_fd(before)
        behind.start(lambda: _silence(work._watches.pop(behind))).wait(60)


def test_a_loop_that_replaces_one_that_has_ended_hears_signals() -> None:
    before, first = signal.set_wakeup_fd(-1), BackgroundLoop()
    try:
        work.end_calls_at_interrupts(first)
        first.close()
        second = BackgroundLoop()
        work.end_calls_at_interrupts(second)
        assert list(work._watches) == [second]
        assert work._watches[second]._installed
        assert signal.set_wakeup_fd(-1) == work._watches[second]._there.fileno()
        second.start(lambda: _silence(work._watches.pop(second))).wait(60)
        second.close()
    finally:
        signal.set_wakeup_fd(before)


async def _silence(watch: work._InterruptWatch) -> None:
    asyncio.get_running_loop().remove_reader(watch._here.fileno())
    for end in (watch._here, watch._there):
        end.close()
