"""The engine of a simulated rank: the real one, but for its connections, its signs of life and its time."""

import asyncio
from collections.abc import Callable

from ringwide.collectives.dispatcher import Dispatcher
from ringwide.collectives.plan import Planner
from ringwide.compression.jobs import CodecPool
from ringwide.config.ring_config import RingConfig
from ringwide.runtime.call_queue import CallQueue
from ringwide.runtime.callers import Descent
from ringwide.runtime.engine import Engine
from ringwide.simulator.programs.wires import Wires
from ringwide.tensors.buffer_pool import BufferPool

COLLECTIVE_SECONDS = 30.0
"""Far longer than anything that a program waits for: a call that times out has stalled."""
LOOK_SECONDS, LINGER_SECONDS = 1e-5, 3e-5

CONFIG = RingConfig()


class SimulatedEngine(Engine):
    """All that `Ring` needs. Everything of `Engine` is inherited but how it is put together and how it is formed."""

    def __init__(self, rank: int, wires: Wires, planner: Planner, descent: Descent) -> None:
        self._rank, self._size, self.config = rank, wires.scenario.size, CONFIG
        self.links = wires.links[rank]  # type: ignore[assignment]
        self.connections = NoListeners()  # type: ignore[assignment]
        self.codec_policy, self._codec_pool, self.planner = None, CodecPool(), planner
        self.dispatcher = Dispatcher(
            rank=rank,
            links=wires.links[rank],
            clock=asyncio.get_running_loop(),
            timeout_seconds=COLLECTIVE_SECONDS,
            warn_after_seconds=COLLECTIVE_SECONDS / 2,
            epoch=wires.scenario.epoch,
        )
        self._heartbeats = SignsOfLife()  # type: ignore[assignment]
        self.calls = CallQueue(
            self.dispatcher,
            express_lanes=lambda peers: wires.express_lanes(rank, peers),
            linger_seconds=LINGER_SECONDS,
            leaving=lambda: False,
            descent=descent,
            time=_counter(),
        )
        self.pool, self._point_to_point, self._formed = BufferPool(), None, True
        for link in wires.links[rank].values():
            link.on_ended = self.dispatcher.peer_loss.stream_ended


class NoListeners:
    """Nobody knocks at a simulated door."""

    async def stop_listening(self) -> None: ...


class SignsOfLife:
    """Programs block their loops, but no rank is ever frozen: all give signs of life."""

    def watch(self, collective: int, /) -> None: ...

    def rest(self) -> None: ...

    def called(self, peer: int, /) -> int:
        return 0

    def close(self) -> None: ...


def _counter() -> Callable[[], float]:
    """Time for those who only compare two moments: it passes by being looked at, so a replay is exact."""
    now = 0.0

    def look() -> float:
        nonlocal now
        now += LOOK_SECONDS
        return now

    return look
