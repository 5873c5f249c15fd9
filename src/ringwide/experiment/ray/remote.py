"""One node as its launcher sees it: the keeper is asked for news, again and again, until the node has ended."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringwide.errors import JoinError
from ringwide.experiment.fleet.seam import Exit
from ringwide.experiment.fleet.words import Words
from ringwide.experiment.ray.keeper import NEWS_SECONDS
from ringwide.experiment.ray.orders import News, Order

ANSWER_SECONDS = 60.0
"""A keeper that owes news for so much longer than it may take is lost. Ray itself often knows earlier."""


@dataclass(frozen=True, slots=True)
class RemoteStart:
    keeper: Any  # the handle of an actor that is a Keeper
    order: Order
    host: str
    directory: Path  # of the run, here
    fetches_log: bool  # the node's log file would otherwise be lost with its scratch directory
    seconds: float

    async def start(self, rank: int, on_line: Callable[[str], None]) -> "RemoteNode":
        await answer(self.keeper.start.remote(self.order), f"node {rank} on {self.host}", "start", self.seconds)
        return RemoteNode(rank, self, on_line)


class RemoteNode:
    def __init__(self, rank: int, start: RemoteStart, on_line: Callable[[str], None]) -> None:
        self.rank = rank
        self._start, self._keeper = start, start.keeper
        self._words = Words(start.directory / f"node-{rank}.stderr.log")
        self._ended = asyncio.ensure_future(self._watch(on_line))

    @property
    def ended(self) -> "asyncio.Future[Exit]":
        return self._ended

    def signal(self, number: int) -> None:
        if not self._ended.done():
            self._keeper.signal.remote(number)  # nobody waits for the answer: that the node ends is the answer

    async def _watch(self, on_line: Callable[[str], None]) -> Exit:
        from ray.exceptions import RayError

        try:
            while (code := self._tell(await self._news(), on_line)) is None:
                pass
            if self._start.fetches_log:
                await self._fetch_log()
            return self._exit(code)
        except RayError as error:
            return self._exit(-signal.SIGKILL, f"was lost with its Ray actor: {why(error)}")
        except TimeoutError:
            return self._exit(-signal.SIGKILL, f"was lost: its Ray actor gave no sign of life for {ANSWER_SECONDS:g} s")
        except Exception:
            self._keeper.signal.remote(signal.SIGKILL)  # nobody listens any more
            raise

    async def _news(self) -> News:
        async with asyncio.timeout(NEWS_SECONDS + ANSWER_SECONDS):
            news: News = await self._keeper.news.remote()
            return news

    def _tell(self, news: News, on_line: Callable[[str], None]) -> int | None:
        for line in news.output:
            on_line(line)
        for line in news.errors:
            self._words(line)
        return news.code

    async def _fetch_log(self) -> None:
        with suppress(OSError), (self._start.directory / f"node-{self.rank}.log").open("wb") as log:
            async with asyncio.timeout(ANSWER_SECONDS):
                while chunk := await self._keeper.log.remote(log.tell()):
                    log.write(chunk)

    def _exit(self, code: int, fate: str = "") -> Exit:
        return Exit(self.rank, code, tuple(self._words.last), self._start.host, fate)


async def answer(reference: Any, who: str, what: str, seconds: float) -> Any:
    """What a keeper answers, in time. Whatever is wrong is a `JoinError` that names the node."""
    from ray.exceptions import RayError, RayTaskError

    try:
        async with asyncio.timeout(seconds):
            return await reference
    except TimeoutError:
        raise JoinError(
            f"{who}: its Ray actor did not {what} within {seconds:g} s (start_timeout_seconds); is that machine busy?"
        ) from None
    except RayTaskError as error:
        raise JoinError(f"{who}: {error.cause or why(error)}") from error
    except RayError as error:
        raise JoinError(f"{who} was lost with its Ray actor: {why(error)}") from error


def why(error: BaseException) -> str:
    """The sentence of Ray's many that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "because" in line or "Error:" in line] or lines
    return telling[-1].partition(". ")[0].rstrip(".") if telling else type(error).__name__
