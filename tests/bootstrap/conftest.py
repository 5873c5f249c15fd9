"""What tests of meeting ranks share."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from bootstrap.raw_clients import START_SECONDS
from ringwide.bootstrap import listen
from ringwide.bootstrap.form_ring import RingFormation
from ringwide.bootstrap.protection import make_key_file

TRIES = 4


@pytest.fixture
async def nothing_left_behind() -> AsyncIterator[None]:
    """No task outlives a ring, however it ended. (A socket would: ResourceWarnings are errors.)"""
    before = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() - before - {asyncio.current_task()} == set()


@pytest.fixture
def start_ends_after_some_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start timeout of START_SECONDS is over when the last rank has dialed all so often, however long it took."""
    timeout, connect = asyncio.timeout, RingFormation._try_connect
    begun: list[asyncio.Timeout] = []
    tries: Counter[int] = Counter()

    def noted(seconds: float | None) -> asyncio.Timeout:
        made = timeout(seconds)
        if seconds == START_SECONDS:
            begun.append(made)
        return made

    async def counted(self: RingFormation, peer: int) -> socket.socket | None:
        if begun and self._rank == len(self._addresses) - 1:
            tries[peer] += 1
            if min(tries.values()) > TRIES:  # so many are over
                for one in begun:
                    with suppress(RuntimeError):  # it has ended already
                        one.reschedule(asyncio.get_running_loop().time())
        return await connect(self, peer)

    monkeypatch.setattr(asyncio, "timeout", noted)
    monkeypatch.setattr(RingFormation, "_try_connect", counted)


@pytest.fixture
def silent_ones_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would keep connections that say nothing to itself for some seconds."""
    monkeypatch.setattr(listen, "SILENT_SECONDS", 0)


@pytest.fixture(autouse=True)
def no_key_but_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGWIDE_KEY_FILE", raising=False)
    monkeypatch.delenv("RINGWIDE_INSECURE", raising=False)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    make_key_file(tmp_path / "ring.key")
    return tmp_path / "ring.key"


@pytest.fixture
def other_key_file(tmp_path: Path) -> Path:
    make_key_file(tmp_path / "other.key")
    return tmp_path / "other.key"
