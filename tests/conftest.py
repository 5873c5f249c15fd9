"""Every asynchronous test runs on both event loops that the package promises to work on.

For those that are about numbers (marked so, or about training, which knows of the loop only where gradients overlap
with the backward pass) one is enough; and for those with processes of their own, which run on the loop that our
commands run on.
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
    if _is_about_numbers(item) or item.get_closest_marker("system") is not None:
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


def _is_about_numbers(item: pytest.Item) -> bool:
    if item.path.parent.name == "training":
        return item.path.name != "test_gradient_exchange.py"
    return item.get_closest_marker("numbers") is not None
