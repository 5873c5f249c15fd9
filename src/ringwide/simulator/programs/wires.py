"""The simulated connections of a program: arrivals are events of the rank's own loop, and one can look for them."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random

from ringwide.collectives.plan import Planner
from ringwide.simulator.lane import SimulatedLane
from ringwide.simulator.network import Network
from ringwide.simulator.programs.loop import RankLoop
from ringwide.simulator.scenario import Scenario


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
