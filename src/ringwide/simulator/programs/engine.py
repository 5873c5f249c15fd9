"""Engine of a simulated rank: the real one, but for its connections, its heartbeats and its time."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from random import Random
from typing import Any, TypeVar

from ringwide.collectives.dispatcher import Dispatcher
from ringwide.collectives.plan import Planner
from ringwide.collectives.running_collective import LaneSharing
from ringwide.compression.jobs import CodecPool
from ringwide.config.ring_config import RingConfig
from ringwide.runtime.connections import Subgroups
from ringwide.runtime.core import FormedRing, RingCore, Topology
from ringwide.simulator.host import Host, VirtualClock
from ringwide.simulator.lane import SimulatedLane
from ringwide.simulator.network import Network
from ringwide.simulator.scenario import Scenario

Result = TypeVar("Result")


class NumberedTask(asyncio.Task[Any]):
    """Task with a fixed hash: a task group keeps its tasks in a set, whose order must be the same in a replay."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class RankLoop(asyncio.AbstractEventLoop):
    """Event loop of one rank on the virtual clock. It runs ready handles in asyncio's order, in turns at random times.

    A frozen host is a process that computes: its loop is blocked, and continues where it was.
    """

    def __init__(self, clock: VirtualClock, host: Host, draw: Callable[[], float], turn_seconds: float) -> None:
        self._clock, self._host, self._draw, self._turn_seconds = clock, host, draw, turn_seconds
        self._ready: deque[asyncio.Handle] = deque()
        self._factory: Callable[..., Any] | None = self._numbered
        self._arranged = False  # a turn is scheduled, or this is one
        self.tasks: list[asyncio.Task[Any]] = []
        self.complaints: list[str] = []  # what asyncio would have logged

    # -- interface of asyncio

    def time(self) -> float:
        return self._clock.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._arranged:
            self._arrange()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._clock.call_at(max(when, self._clock.now), partial(self._due, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the clock and is skipped when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Result], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Result]:
        given: dict[str, Any] = {} if context is None else {"context": context}
        task = asyncio.Task(coro, loop=self, **given) if self._factory is None else self._factory(self, coro, **given)
        self.tasks.append(task)
        return task

    def _numbered(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **given: Any) -> Any:
        task = NumberedTask(coro, loop=loop, **given)
        task.number = len(self.tasks)
        return task

    def set_task_factory(self, factory: Callable[..., Any] | None) -> None:
        self._factory = factory

    def get_task_factory(self) -> Callable[..., Any] | None:
        return self._factory

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    def close(self) -> None:
        """Close the coroutines of tasks that still wait."""
        for task in self.tasks:
            if not task.done():
                with suppress(Exception):
                    task.get_coro().close()

    # -- turns

    def _due(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled():
            self._ready.append(timer)
            if not self._arranged:
                self._arrange()

    def _arrange(self) -> None:
        self._arranged = True
        self._clock.call_later(self._turn_seconds * self._draw(), self._turn)

    def _turn(self) -> None:
        """Run what is ready now. What becomes ready by that has the next turn."""
        if self._host.frozen:
            self._host.defer(self._turn)
            return
        ready = self._ready
        asyncio._set_running_loop(self)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
        asyncio._set_running_loop(None)
        self._arranged = False
        if ready:
            self._arrange()


class PollingLane(SimulatedLane):
    """Lane on which a lingering caller may find bytes that are under way, before its loop has a turn."""

    __slots__ = ("_coming", "_loop", "_poll_success")

    def __init__(self, network: "Wires", rank: int, peer: int, index: int) -> None:
        super().__init__(network, rank, peer, index)
        self._loop, self._poll_success = network.loop_of(rank), network.poll_success
        self._coming: deque[bytes] = deque()

    # -- through the loop: each write and read is an event of its own

    def _depart_later(self) -> None:
        if not self._departing:
            self._departing = True
            self._clock.call_later(self._network.delay(), lambda: self._loop.call_soon(self._depart))

    def _read(self) -> None:
        self._loop.call_soon(super()._read)

    # -- by polling

    def _transmit(self, data: bytes) -> None:
        other = self.other
        assert isinstance(other, PollingLane)
        self._unread += len(data)
        self._sent += len(data)
        other._coming.append(data)
        self._cross(other._arrive)

    def _arrive(self) -> None:
        if self._coming:  # otherwise a poll has taken it already
            self._deliver(self._coming.popleft())

    def poll(self) -> bool:
        """Take what has come so far. Whether a poll finds it is random."""
        if self.closed or not (self._coming or self._inbox) or self._draw() > self._poll_success:
            return False
        while self._coming:
            data = self._coming.popleft()
            self._network.note(self, len(data))
            self._inbox += data
            self.received += len(data)
        super()._read()
        return True


class Wires(Network):
    """Network of a program. `poll_success` is the probability that a poll finds bytes that are under way."""

    def __init__(
        self,
        scenario: Scenario,
        planners: Sequence[Planner],
        rng: Random,
        report: Callable[[str], None],
        *,
        turn_seconds: Sequence[float],
        poll_success: float,
    ) -> None:
        self.poll_success, self._turn_seconds = poll_success, turn_seconds
        self._loops: dict[int, RankLoop] = {}
        super().__init__(scenario, planners, rng, report)

    def loop_of(self, rank: int) -> RankLoop:
        if rank not in self._loops:
            self._loops[rank] = RankLoop(  # type: ignore[abstract]
                self.clock, self.hosts[rank], self.draw, self._turn_seconds[rank]
            )
        return self._loops[rank]

    def _lane(self, rank: int, peer: int, index: int) -> PollingLane:
        return PollingLane(self, rank, peer, index)


COLLECTIVE_SECONDS = 30.0
"""Far longer than any wait of a program: a call that times out has stalled."""
LOOK_SECONDS, LINGER_SECONDS = 1e-5, 3e-5

CONFIG = RingConfig(linger_seconds=LINGER_SECONDS)


class SimulatedCore(RingCore):
    """Core of a ring on simulated connections. The ring is formed already."""

    def __init__(self, rank: int, wires: Wires, planner: Planner) -> None:
        self.rank, self.size, self.config = rank, wires.scenario.size, CONFIG
        self.leaving = lambda: False
        self.links = wires.links[rank]  # type: ignore[assignment]
        self.connections, self.subgroups = NoListeners(), Subgroups()  # type: ignore[assignment]
        self.endpoint, self.codec_policy, self.codec_pool = None, None, CodecPool()
        self._planner, self._formed = planner, True
        self.dispatcher = Dispatcher(
            rank=rank,
            links=wires.links[rank],
            clock=asyncio.get_running_loop(),
            timeout_seconds=COLLECTIVE_SECONDS,
            warn_after_seconds=COLLECTIVE_SECONDS / 2,
            sharing=LaneSharing(wires.scenario.epoch),
        )
        self.heartbeats = AlwaysAlive()  # type: ignore[assignment]
        self.dispatcher.deadlines.start(self.heartbeats)

    def planner(self, *, tree_bytes: int, express_bytes: int = 0) -> Planner:
        """Planner drawn for this rank."""
        return self._planner

    @property
    def formed(self) -> FormedRing:
        topology = Topology(one_host=False, by_memory=False, crowded=False)
        return FormedRing(self.rank, self.size, self.links, topology, ranks_here=1, cores_here=1)


class NoListeners:
    """Connections without a listener."""

    async def stop_listening(self) -> None: ...


ALL_OF_THEM = 2**63


class AlwaysAlive:
    """Heartbeats of ranks that are never silent: programs block their loops, but no rank is lost."""

    def watch(self, collective: int, /) -> None: ...

    def rest(self) -> None: ...

    def called(self, peer: int, /) -> int:
        return ALL_OF_THEM

    def close(self) -> None: ...


def counter() -> Callable[[], float]:
    """Clock for measuring intervals: it advances with every reading, so that a replay is exact."""
    now = 0.0

    def read() -> float:
        nonlocal now
        now += LOOK_SECONDS
        return now

    return read
