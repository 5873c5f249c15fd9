"""The engine of a simulated rank: the real one, but for its connections, its signs of life and its time."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random

from ringwide.collectives.dispatcher import Dispatcher
from ringwide.collectives.plan import Planner
from ringwide.compression.jobs import CodecPool
from ringwide.config.ring_config import RingConfig
from ringwide.runtime.call_queue import CallQueue
from ringwide.runtime.callers import Descent
from ringwide.runtime.engine import Engine
from ringwide.simulator.lane import SimulatedLane
from ringwide.simulator.network import Network
from ringwide.simulator.programs.loop import RankLoop
from ringwide.simulator.scenario import Scenario
from ringwide.tensors.buffer_pool import BufferPool


class LookingLane(SimulatedLane):
    """A lane on which a caller that lingers may find what is on its way to it, before its loop has a turn."""

    __slots__ = ("_coming", "_eyes", "_loop")

    def __init__(self, network: "Wires", rank: int, peer: int, index: int) -> None:
        super().__init__(network, rank, peer, index)
        self._loop, self._eyes = network.loop_of(rank), network.eyes
        self._coming: deque[bytes] = deque()

    # -- as a loop finds out: what may be written or read is an event of its own

    def _depart_later(self) -> None:
        if not self._departing:
            self._departing = True
            self._clock.call_later(self._network.delay(), lambda: self._loop.call_soon(self._depart))

    def _read(self) -> None:
        self._loop.call_soon(super()._read)

    # -- as one finds out who looks

    def _transmit(self, data: bytes) -> None:
        other = self.other
        assert isinstance(other, LookingLane)
        self._unread += len(data)
        self._sent += len(data)
        other._coming.append(data)
        self._cross(other._arrive)

    def _arrive(self) -> None:
        if self._coming:  # else it has been looked at already
            self._deliver(self._coming.popleft())

    def look(self) -> bool:
        """Whether the answer is there at once differs by rank and by seed."""
        if self.closed or not (self._coming or self._inbox) or self._chance() > self._eyes:
            return False
        while self._coming:
            data = self._coming.popleft()
            self._network.note(self, len(data))
            self._inbox += data
            self.received += len(data)
        super()._read()
        return True


class Wires(Network):
    """Everything between the ranks of a program. `eyes` is the chance that a look finds what is on its way."""

    def __init__(
        self,
        scenario: Scenario,
        planners: Sequence[Planner],
        chance: Random,
        report: Callable[[str], None],
        *,
        turn_seconds: Sequence[float],
        eyes: float,
    ) -> None:
        self.eyes, self._turn_seconds = eyes, turn_seconds
        self._loops: dict[int, RankLoop] = {}
        super().__init__(scenario, planners, chance, report)

    def loop_of(self, rank: int) -> RankLoop:
        if rank not in self._loops:
            self._loops[rank] = RankLoop(  # type: ignore[abstract]
                self.clock, self.hosts[rank], self.chance, self._turn_seconds[rank]
            )
        return self._loops[rank]

    def _lane(self, rank: int, peer: int, index: int) -> LookingLane:
        return LookingLane(self, rank, peer, index)

    def express_lanes(self, rank: int, peers: Iterable[int]) -> list[LookingLane]:
        lanes = [self.links[rank][peer].lanes[0] for peer in peers]
        return [lane for lane in lanes if isinstance(lane, LookingLane)]


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
