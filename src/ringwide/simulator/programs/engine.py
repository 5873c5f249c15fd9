"""The engine of a simulated rank: the real one, but for its connections, its signs of life and its time."""

import asyncio
from collections.abc import Callable

from ringwide.buckets import Shelf
from ringwide.callers import Descent
from ringwide.calls import Calls
from ringwide.collective.dispatch import Dispatcher
from ringwide.collective.plan import Planner
from ringwide.collective.workshop import Workshop
from ringwide.config import RingConfig
from ringwide.engine import Engine
from ringwide.simulator.programs.wires import Wires

COLLECTIVE_SECONDS = 30.0
"""Far longer than anything that a program waits for: a call that times out has stalled."""
LEAVE_SECONDS, LEAVE_STEP_SECONDS = 0.5, 0.002
LOOK_SECONDS, LINGER_SECONDS = 1e-5, 3e-5

CONFIG = RingConfig()


class SimulatedEngine(Engine):
    """All that `Ring` needs. Everything of `Engine` is inherited but how it is put together and how it is formed."""

    def __init__(self, rank: int, wires: Wires, planner: Planner, descent: Descent) -> None:
        self._rank, self._size, self.config = rank, wires.scenario.size, CONFIG
        self.links = wires.links[rank]  # type: ignore[assignment]
        self.connections = SimulatedConnections(rank, wires)  # type: ignore[assignment]
        self.coder, self._workshop, self.planner = None, Workshop(), planner
        self.dispatcher = Dispatcher(
            rank=rank,
            links=wires.links[rank],
            clock=asyncio.get_running_loop(),
            timeout_seconds=COLLECTIVE_SECONDS,
            warn_after_seconds=COLLECTIVE_SECONDS / 2,
            epoch=wires.scenario.epoch,
        )
        self._liveness = NoLiveness()  # type: ignore[assignment]
        self.calls = Calls(
            self.dispatcher,
            express_lanes=lambda peers: wires.express_lanes(rank, peers),
            linger_seconds=LINGER_SECONDS,
            leaving=lambda: False,
            descent=descent,
            time=_counter(),
        )
        self.shelf, self._correspondence = Shelf(), None


class SimulatedConnections:
    """The lanes of one rank, when it leaves."""

    def __init__(self, rank: int, wires: Wires) -> None:
        self._lanes = wires.lanes_of(rank)

    async def stop_listening(self) -> None:
        """Nobody knocks here."""

    async def close(self) -> None:
        for _ in range(int(LEAVE_SECONDS / LEAVE_STEP_SECONDS)):
            if not any(lane.owes_bytes for lane in self._lanes):
                break
            await asyncio.sleep(LEAVE_STEP_SECONDS)
        for lane in self._lanes:
            lane.close()


class NoLiveness:
    """Programs block their loops, but no rank is ever frozen: nobody needs to ask."""

    def close(self) -> None: ...


def _counter() -> Callable[[], float]:
    """Time for those who only compare two moments: it passes by being looked at, so a replay is exact."""
    now = 0.0

    def look() -> float:
        nonlocal now
        now += LOOK_SECONDS
        return now

    return look
