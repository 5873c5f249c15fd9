"""A link: all lanes to one peer.

Lane 0 is the express lane: news and small frames travel on it and never wait behind bulk, and it is never paused.
Bulk lanes exist only where the algorithms need them, and a large bucket is striped over all of them. The p2p lane, if
there is one, carries messages between these two: a bulk lane may be paused, and a message must not wait for that.
"""

from collections.abc import Callable, Collection
from typing import Protocol

from ringwide.protocol.frame import HEADER_BYTES
from ringwide.protocol.p2p import P2P_LANE
from ringwide.transport.buffers import PayloadOwner
from ringwide.transport.lane import Lane


class EndingLane(Protocol):
    """What the end of a link needs of its lanes; the simulator has its own."""

    on_end: Callable[[], None]

    @property
    def ended(self) -> bool:
        """The peer's END has been read."""

    @property
    def closed(self) -> bool: ...

    @property
    def delivered(self) -> bool:
        """What was sent, up to our END, is where a peer that lives will read it."""

    @property
    def moved(self) -> int: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...

    def reset(self) -> None: ...


class EndingLink:
    """What a link is told by its lanes, and tells. `on_ended`: all that `peer` sends has come."""

    def __init__(self, peer: int, on_ended: Callable[[int], None]) -> None:
        self.peer, self._on_ended = peer, on_ended
        self._ended = False
        self._on_over: Callable[[], None] = _nothing

    def all_lanes(self) -> Collection[EndingLane]:
        raise NotImplementedError

    def finish(self, on_over: Callable[[], None]) -> None:
        """Say END on every lane. They close when the peer has done so too. `on_over`: told whenever it may be over."""
        self._on_over = on_over
        self._finish_lanes()

    def _finish_lanes(self) -> None:
        for lane in list(self.all_lanes()):
            lane.finish()

    def abandon(self) -> None:
        """Do not wait for that. What the peer's kernel has got is there to be read; where it has not, it hears so."""
        for lane in list(self.all_lanes()):
            if lane.delivered:
                lane.close()
            else:
                lane.reset()

    @property
    def over(self) -> bool:
        """Nothing more is to be expected of the peer: all lanes have closed, or one broke."""
        lanes = self.all_lanes()
        return any(lane.closed and not lane.ended for lane in lanes) or all(lane.closed for lane in lanes)

    @property
    def delivered(self) -> bool:
        return all(lane.closed or lane.delivered for lane in self.all_lanes())

    @property
    def moved(self) -> int:
        """Grows with what gets there and what comes from there."""
        return sum(lane.moved for lane in self.all_lanes())

    def lane_has_ended(self) -> None:
        """One lane has ended, or was closed."""
        if not self._ended and all(lane.ended for lane in self.all_lanes()):
            self._ended = True
            self._finish_lanes()
            self._on_ended(self.peer)
        if self.over:
            self._on_over()


def _nothing() -> None: ...


EXPRESS_BYTES = 256 * 1024
"""The largest payload for the express lane."""

STAGING_BYTES = 128 * 1024 + HEADER_BYTES
"""An express lane receives up to this much at once, headers and small payloads together."""

BULK_STAGING_BYTES = 8 * 1024
"""Of a bulk lane with shared memory: many headers with references at once."""

EXPRESS_MEMORY_BYTES = 1024 * 1024
"""The largest payload for an express lane with shared memory."""

EXPRESS_SLOTS = 2
MOST_EXPRESS_ARENAS = 32
"""In a larger ring express lanes share no memory: there is one to every rank, and each takes descriptors."""

P2P_STAGING_BYTES = 16 * 1024 + HEADER_BYTES


class Link(EndingLink):
    """The express lane, the bulk lanes and the p2p lane to one peer."""

    def __init__(self, peer: int, on_ended: Callable[[int], None]) -> None:
        super().__init__(peer, on_ended)
        self.lanes: dict[int, Lane] = {}
        self._bulk: list[Lane] = []

    def __repr__(self) -> str:
        return f"<Link to rank {self.peer}: {list(self.lanes.values())}>"

    def add(self, lane: Lane) -> None:
        self.lanes[lane.index] = lane
        lane.on_end = self.lane_has_ended
        self._ended = False  # one that could not join may have said END on the lanes that were there before
        self._bulk = [lane for index, lane in sorted(self.lanes.items()) if 0 < index < P2P_LANE]

    def all_lanes(self) -> Collection[Lane]:
        return self.lanes.values()

    def send_express(self, header: bytes, payload: memoryview) -> None:
        self.lanes[0].send(header, payload)

    def send_bulk(
        self, header: bytes, payload: memoryview, *, stripe: int, owner: PayloadOwner | None, collective: int
    ) -> None:
        self._bulk[stripe % len(self._bulk)].send(header, payload, owner=owner, collective=collective)

    def reserve_bulk(self, nbytes: int, *, stripe: int) -> memoryview | None:
        """Where the payload that leaves next may be written, instead of being copied there. `send_reserved` follows."""
        return self._bulk[stripe % len(self._bulk)].reserve(nbytes)

    def send_reserved(self, header: bytes, *, stripe: int) -> None:
        self._bulk[stripe % len(self._bulk)].send_reserved(header)

    def tell(self, frame: bytes) -> None:
        """Send news, if the peer can still be reached."""
        if 0 in self.lanes:
            self.lanes[0].send(frame[:HEADER_BYTES], memoryview(frame)[HEADER_BYTES:])

    def send_p2p(self, header: bytes, payload: memoryview, *, owner: PayloadOwner, number: int) -> None:
        self.lanes[P2P_LANE].send(header, payload, owner=owner, collective=number)

    def tell_p2p(self, frame: bytes) -> None:
        self.lanes[P2P_LANE].send(frame[:HEADER_BYTES], memoryview(frame)[HEADER_BYTES:])

    def forget_p2p(self, number: int) -> None:
        self.lanes[P2P_LANE].forget(number)

    def forget(self, collective: int) -> None:
        for lane in self._bulk:
            lane.forget(collective)
