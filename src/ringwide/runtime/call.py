"""Call as its user holds it: a coroutine whose work began when it was made.

It can be awaited, wrapped in a task, gathered, put under a deadline or into a task group, as any coroutine. Whatever
else becomes of it (it is cancelled before its first turn, closed, dropped, awaited where its ring does not live) gives
it up.
"""

import asyncio
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator
from types import FrameType, GeneratorType
from typing import Any, NoReturn, Protocol, TypeVar, cast

from ringwide.collectives.call_kinds import NeverAwaited, OtherLoop

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_PATIENCE_SECONDS = 60.0
TURN_SECONDS = 0.001
"""Calls that find their answers at once never sleep. After so long the event loop gets a turn all the same."""
_AWAITED = "this call is awaited already, or was closed; make another one"
_NOT_WITHIN = (
    "ringwide.runtime.call_queue",
    "ringwide.tensors",
    "ringwide.collectives",
    "ringwide.p2p",
    "ringwide.transport",
)
"""Rooms in the middle of whose work nothing may be given up. The collector may be at work there."""


class UnderWay(Protocol[T_co]):
    """What a call is about."""

    over: bool
    outcome: "asyncio.Future[None] | None"
    """Set before it is waited for; gets a result when it is over."""

    def give_up(self, cause: BaseException) -> None:
        """Nobody wants it any more. What was the caller's is the caller's again, as it was."""

    def settle(self) -> T_co:
        """It is over: its result, or its error."""
        ...


class Failed:
    """What a call is about that could not even begin."""

    over, lingers = True, False
    outcome: "asyncio.Future[None] | None" = None

    def __init__(self, error: Exception) -> None:
        self._error: Exception | None = error

    def give_up(self, cause: BaseException) -> None:
        self._error = None

    def settle(self) -> NoReturn:
        error, self._error = self._error, None
        try:
            assert error is not None
            raise error
        finally:
            del error


class CallHome(Protocol):
    """Where a call lives."""

    loop: asyncio.AbstractEventLoop
    thread: int
    time: Callable[[], float]
    turned_at: float
    """When the event loop has had a turn."""

    def linger(self, under_way: Any, /) -> None: ...


class Call(Coroutine[Any, Any, T]):
    """One call of a ring's user."""

    __slots__ = ("__weakref__", "_driven_by", "_driver", "_home", "_under_way")

    def __init__(self, under_way: UnderWay[T], home: CallHome) -> None:
        self._under_way: UnderWay[T] | None = under_way  # until somebody waits for it
        self._home = home
        self._driver: GeneratorType[Any, None, T] | None = None
        self._driven_by: asyncio.Task[Any] | None = None

    @property
    def __name__(self) -> str:
        return "call of a ring"

    def __await__(self) -> Generator[Any, None, T]:
        under_way, home = self._under_way, self._home
        if under_way is None or asyncio._get_running_loop() is not home.loop:
            raise self._why_not()
        self._under_way = None
        try:
            if not under_way.over:
                home.linger(under_way)
            if not under_way.over:
                under_way.outcome = home.loop.create_future()
                yield from under_way.outcome
                home.turned_at = home.time()
            elif home.time() - home.turned_at > TURN_SECONDS:
                yield
                home.turned_at = home.time()
        except GeneratorExit as cause:
            self._give_up(under_way, cause, wait=True, soon=_is_within(sys._getframe()))
            raise
        except BaseException as cause:
            under_way.give_up(cause)
            raise
        return under_way.settle()

    def _why_not(self) -> RuntimeError:
        """It cannot be awaited here and now."""
        if self._under_way is None:
            return RuntimeError(_AWAITED)
        error = OtherLoop("this call is awaited on another event loop than that of its ring; await it there")
        self._give_up_untaken(error)
        return error

    # -- as a task drives it

    def send(self, value: Any) -> Any:
        task = asyncio.current_task()
        if self._driver is None:
            self._driver = cast("GeneratorType[Any, None, T]", self.__await__())
        elif self._driver.gi_frame is None or self._driven_by not in (None, task):
            raise RuntimeError(_AWAITED)
        self._driven_by = task
        return self._driver.send(value)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        if self._driver is not None and self._driver.gi_frame is not None:
            return self._driver.throw(kind, value, traceback) if value is not None else self._driver.throw(kind)
        cause = value if value is not None else kind if isinstance(kind, BaseException) else kind()
        self._give_up_untaken(cause)
        raise cause

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()
        else:
            self._give_up_untaken(GeneratorExit())

    # -- nobody waits for it

    def __del__(self) -> None:
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            self._give_up(under_way, NeverAwaited(), wait=False, soon=True)
            warnings.warn("a call of a ring was never awaited", RuntimeWarning, stacklevel=2, source=self)

    def _give_up_untaken(self, cause: BaseException) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            self._give_up(under_way, cause, wait=True)

    def _give_up(self, under_way: UnderWay[T], cause: BaseException, *, wait: bool, soon: bool = False) -> None:
        """Where the call lives. The garbage collector may be at work on any thread, and waits for none; and in the
        middle of anything, so that what it finds is given up `soon`."""
        home = self._home
        if threading.get_ident() == home.thread:
            if not soon:
                under_way.give_up(cause)
                return
            wait = False
        given_up = threading.Event()

        def give_up_here() -> None:
            try:
                under_way.give_up(cause)
            finally:
                given_up.set()

        try:
            home.loop.call_soon_threadsafe(give_up_here)
        except RuntimeError:  # the loop is closed, and the ring with it
            return
        if wait:
            given_up.wait(_PATIENCE_SECONDS)


def _is_within(frame: FrameType | None) -> bool:
    """Is this in the middle of what the ring does?"""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_NOT_WITHIN):
            return True
        frame = frame.f_back
    return False
