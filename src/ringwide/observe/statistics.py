"""The figures of one ring, as `Ring.statistics()` gives them."""

from collections.abc import Iterable
from dataclasses import dataclass

from ringwide.transport.link import Link
from ringwide.transport.sockets import granted_bytes


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """One connection. The buffers are what the kernel granted, whatever was asked."""

    index: int
    bytes_sent: int
    bytes_received: int
    send_buffer_bytes: int
    receive_buffer_bytes: int


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """All connections to one peer."""

    peer: int
    lanes: tuple[LaneStatistics, ...]

    @property
    def bytes_sent(self) -> int:
        return sum(lane.bytes_sent for lane in self.lanes)

    @property
    def bytes_received(self) -> int:
        return sum(lane.bytes_received for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class Statistics:
    """One ring since it was joined. `network_seconds` is the time in which at least one collective was awaited."""

    collectives: int
    network_seconds: float
    buffer_bytes_asked: int
    links: tuple[LinkStatistics, ...]

    @property
    def bytes_sent(self) -> int:
        return sum(link.bytes_sent for link in self.links)

    @property
    def bytes_received(self) -> int:
        return sum(link.bytes_received for link in self.links)


def of_links(links: Iterable[Link]) -> tuple[LinkStatistics, ...]:
    return tuple(
        LinkStatistics(
            link.peer,
            tuple(
                LaneStatistics(
                    lane.index,
                    lane.bytes_sent,
                    lane.bytes_received,
                    *((0, 0) if lane.closed else granted_bytes(lane.socket)),
                )
                for lane in link.lanes.values()
            ),
        )
        for link in links
    )
