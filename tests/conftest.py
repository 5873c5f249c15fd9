"""Every asynchronous test runs on both event loops that the package promises to work on.

Training knows of the loop only where gradients overlap with the backward pass, so there one is enough.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping

import pytest
import uvloop
from hypothesis import settings

settings.register_profile("ringwide", deadline=None)
settings.load_profile("ringwide")


def pytest_configure() -> None:
    """A shell makes what it runs in the background ignore Ctrl-C, and so would every process that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.parent.name == "training" and item.path.name != "test_exchange.py":
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
