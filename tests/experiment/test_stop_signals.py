import asyncio
import os
import signal
import subprocess
import sys

import pytest

from experiment.heeding import heeding  # noqa: F401
from ringwide.experiment.stop_signals import StopSignals, stop_on_signals

HANG_UP = """
import asyncio, os, signal, sys
from ringwide.experiment.stop_signals import stop_on_signals

async def main():
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        await stop.asked
        print("to nowhere", flush=True)

sys.stdout.isatty = lambda: {terminal}
asyncio.run(main())
"""


async def test_the_first_signal_asks_and_the_second_insists() -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(stop.asked, 60) == signal.SIGTERM
        assert not stop.insisted.done()
        os.kill(os.getpid(), signal.SIGINT)
        assert await asyncio.wait_for(stop.insisted, 60) == signal.SIGINT


async def test_a_third_signal_changes_nothing() -> None:
    stop = StopSignals()
    for number in (1, 2, 15):
        stop.ask(number)
    assert (stop.asked.result(), stop.insisted.result()) == (1, 2)


async def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(stop.asked, 60) == signal.SIGTERM
        assert not stop.insisted.done()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.system
@pytest.mark.parametrize(("terminal", "output"), [(True, ""), (False, "to nowhere\n")])
def test_a_terminal_that_hung_up_is_not_written_to(terminal: bool, output: str) -> None:
    code = HANG_UP.format(terminal=terminal)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, output, "")
