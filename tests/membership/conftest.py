"""What tests of meeting ranks share."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringwide.membership.keys import make_key_file


@pytest.fixture
async def nothing_left_behind() -> AsyncIterator[None]:
    """No task outlives a ring, however it ended. (A socket would: ResourceWarnings are errors.)"""
    before = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() - before - {asyncio.current_task()} == set()


@pytest.fixture(autouse=True)
def no_key_but_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGWIDE_KEY_FILE", raising=False)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    make_key_file(tmp_path / "ring.key")
    return tmp_path / "ring.key"


@pytest.fixture
def other_key_file(tmp_path: Path) -> Path:
    make_key_file(tmp_path / "other.key")
    return tmp_path / "other.key"
