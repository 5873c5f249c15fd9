"""Default handling of signals: the tests may run under `nohup`, and every process they start would ignore them too."""

import signal
from collections.abc import Iterator

import pytest

from ringwide.experiment.stop_signals import SIGNALS


@pytest.fixture(autouse=True)
def heeding() -> Iterator[None]:
    """In every test of a module that imports it."""
    ignored = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
