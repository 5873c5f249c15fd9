"""Every asynchronous test runs on both event loops that the package promises to work on."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop
from hypothesis import settings

settings.register_profile("ringwide", deadline=None)
settings.load_profile("ringwide")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
