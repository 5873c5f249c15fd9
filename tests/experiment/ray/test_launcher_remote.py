"""Remote nodes as their launcher sees them, with a fake keeper. Ray is not needed."""

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ringwide.errors import JoinError
from ringwide.experiment.ray import launcher
from ringwide.experiment.ray.keeper import NewOutput
from ringwide.experiment.ray.launcher import RemoteNode, RemoteStart, answer, why


class RayError(Exception):
    pass


class RayTaskError(RayError):
    cause: Exception | None = None


@pytest.fixture(autouse=True)
def errors_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions: Any = ModuleType("ray.exceptions")
    exceptions.RayError, exceptions.RayTaskError = RayError, RayTaskError
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)


class Method:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = function


class FakeKeeper:
    """Answers polls with these, one after the other; an exception is raised. After the last it answers no more."""

    def __init__(self, *news: NewOutput | Exception, log: bytes = b"") -> None:
        self._news, self._log = list(news), log
        self.signals: list[int] = []
        self.poll, self.log, self.signal = Method(self._tell), Method(self._read), Method(self.signals.append)

    async def _tell(self) -> NewOutput:
        if not self._news:
            await asyncio.get_running_loop().create_future()
        news = self._news.pop(0)
        if isinstance(news, Exception):
            raise news
        return news

    async def _read(self, offset: int) -> bytes:
        return self._log[offset : offset + 3]


def started(
    keeper: FakeKeeper, directory: Path, on_line: Callable[[str], None] = lambda line: None, fetches_log: bool = False
) -> RemoteNode:
    order: Any = None
    return RemoteNode(1, RemoteStart(keeper, order, "10.0.0.2", directory, fetches_log, 5.0), on_line)


async def test_everything_a_node_says_arrives_and_so_does_its_end(tmp_path: Path) -> None:
    heard: list[str] = []
    keeper = FakeKeeper(
        NewOutput(("a", "b"), ()), NewOutput((), ("oh",)), NewOutput(("c",), ("no",), 3), log=b"a log file"
    )
    exit = await started(keeper, tmp_path, heard.append, fetches_log=True).ended
    assert heard == ["a", "b", "c"]
    assert (exit.code, exit.last_lines) == (3, ("oh", "no"))
    assert str(exit) == "node 1 on 10.0.0.2 ended with exit code 3"
    assert (tmp_path / "node-1.stderr.log").read_text() == "oh\nno\n"
    assert (tmp_path / "node-1.log").read_bytes() == b"a log file"


async def test_a_node_whose_actor_is_gone_keeps_its_last_words(tmp_path: Path) -> None:
    lost = RayError("The actor died.\n\tpid: 7\nThe actor is dead because its node has died. Node Id: 12. More.")
    exit = await started(FakeKeeper(NewOutput((), ("oh",)), lost), tmp_path).ended
    assert str(exit) == ("node 1 on 10.0.0.2 was lost with its Ray actor: The actor is dead because its node has died")
    assert (exit.code, exit.last_lines) == (-signal.SIGKILL, ("oh",))


async def test_an_actor_that_says_nothing_more_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(launcher, "POLL_SECONDS", 0.01)
    exit = await started(FakeKeeper(), tmp_path).ended
    assert str(exit) == "node 1 on 10.0.0.2 was lost: its Ray actor has not answered for 0.01 s"


async def test_a_node_that_nobody_hears_any_more_is_killed(tmp_path: Path) -> None:
    def full(line: str) -> None:
        raise OSError("the disk is full")

    keeper = FakeKeeper(NewOutput(("a",), ()))
    node = started(keeper, tmp_path, full)
    with pytest.raises(OSError, match="the disk is full"):
        await node.ended
    assert keeper.signals == [signal.SIGKILL]
    node.signal(signal.SIGTERM)  # it has ended
    assert keeper.signals == [signal.SIGKILL]


async def test_what_goes_wrong_at_the_start_names_the_node() -> None:
    async def failing(error: Exception) -> None:
        raise error

    cause = RayTaskError("a long story")
    cause.cause = ValueError("no such address")
    with pytest.raises(JoinError, match=r"^node 0: no such address$"):
        await answer(failing(cause), "node 0", "listen", 5.0)
    with pytest.raises(JoinError, match=r"^node 0 was lost with its Ray actor: gone$"):
        await answer(failing(RayError("gone")), "node 0", "listen", 5.0)
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(JoinError, match=r"^node 0: its Ray actor did not listen within 0\.01 s"):
        await answer(never, "node 0", "listen", 0.01)


def test_why_of_an_error_without_words() -> None:
    assert why(RayError()) == "RayError"
    assert why(RayError("ModuleNotFoundError: No module named 'ringwide'")).endswith("No module named 'ringwide'")
