"""A link: all lanes to one peer.

Lane 0 is the express lane. Control frames and small payloads travel on it, so they never wait behind bulk, and it is
never paused. Bulk lanes exist only where the algorithms need them; a large bucket is striped over all of them. The p2p
lane, if there is one, carries messages between the two ranks: a bulk lane may be paused, and a message must not wait
for that.
"""

from collections.abc import Callable, Collection
from typing import Protocol

from ringwide.protocol.frame import HEADER_BYTES
from ringwide.protocol.p2p import P2P_LANE
from ringwide.transport.lane import Lane
from ringwide.transport.lane_buffers import PayloadOwner

EXPRESS_BYTES = 256 * 1024
"""Largest payload on the express lane."""

STAGING_BYTES = 128 * 1024 + HEADER_BYTES
"""Most that an express lane receives at once, headers and small payloads together."""

BULK_STAGING_BYTES = 8 * 1024
"""Staging buffer of a bulk lane with shared memory, for many headers with references at once."""

EXPRESS_MEMORY_BYTES = 1024 * 1024
"""Largest payload on an express lane with shared memory."""

EXPRESS_SLOTS = 2
MOST_EXPRESS_ARENAS = 32
"""In a larger ring, express lanes share no memory: there is one to each rank, and each would take descriptors."""

P2P_STAGING_BYTES = 16 * 1024 + HEADER_BYTES


class EndingLane(Protocol):
    """The part of a lane that the end of a link needs. The simulator has lanes of its own."""

    on_end: Callable[[], None]

    @property
    def ended(self) -> bool:
        """The peer's END has been read."""

    @property
    def closed(self) -> bool: ...

    @property
    def delivered(self) -> bool:
        """Everything up to our END is where a live peer will read it."""

    @property
    def moved(self) -> int:
        """Bytes that have reached the peer or come from it."""

    def finish(self) -> None: ...

    def close(self) -> None: ...

    def reset(self) -> None: ...


class EndingLink:
    """The orderly end of a link, lane by lane. `on_ended` is called when everything that `peer` sends has come."""

    def __init__(self, peer: int, on_ended: Callable[[int], None]) -> None:
        self.peer, self._on_ended = peer, on_ended
        self._ended = False
        self._on_over: Callable[[], None] = _ignore

    def all_lanes(self) -> Collection[EndingLane]:
        raise NotImplementedError

    def finish(self, on_over: Callable[[], None]) -> None:
        """Send END on every lane. Each closes when the peer's END has come too.

        `on_over` is called when the link is over, however it ends.
        """
        self._on_over = on_over
        self._finish_lanes()

    def _finish_lanes(self) -> None:
        for lane in list(self.all_lanes()):
            lane.finish()

    def abandon(self) -> None:
        """Close without waiting for the peer. Lanes with undelivered bytes are reset, so that it notices the loss."""
        for lane in list(self.all_lanes()):
            if lane.delivered:
                lane.close()
            else:
                lane.reset()

    @property
    def over(self) -> bool:
        """Whether nothing more can be expected of the peer: all lanes have closed, or one broke."""
        lanes = self.all_lanes()
        return any(lane.closed and not lane.ended for lane in lanes) or all(lane.closed for lane in lanes)

    @property
    def delivered(self) -> bool:
        return all(lane.closed or lane.delivered for lane in self.all_lanes())

    @property
    def moved(self) -> int:
        """Bytes that have reached the peer or come from it, over all lanes."""
        return sum(lane.moved for lane in self.all_lanes())

    def lane_has_ended(self) -> None:
        """Called by a lane that has ended or was closed."""
        if not self._ended and all(lane.ended for lane in self.all_lanes()):
            self._ended = True
            self._finish_lanes()
            self._on_ended(self.peer)
        if self.over:
            self._on_over()


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
        if lane.index == 0:
            self.send_express = lane.send  # the lane's own method: small frames are many
        lane.on_end = self.lane_has_ended
        self._ended = False  # a rank that could not join may have sent END on the lanes that were there before
        self._bulk = [lane for index, lane in sorted(self.lanes.items()) if 0 < index < P2P_LANE]

    def all_lanes(self) -> Collection[Lane]:
        return self.lanes.values()

    def send_bulk(
        self, header: bytes, payload: memoryview, *, stripe: int, owner: PayloadOwner | None, key: int
    ) -> None:
        self._bulk[stripe % len(self._bulk)].send(header, payload, owner=owner, key=key)

    def reserve_bulk(self, nbytes: int, *, stripe: int) -> memoryview | None:
        """Memory to write the next payload into, which saves a copy. None: there is none. `send_reserved` follows."""
        return self._bulk[stripe % len(self._bulk)].reserve(nbytes)

    def send_reserved(self, header: bytes, *, stripe: int) -> None:
        self._bulk[stripe % len(self._bulk)].send_reserved(header)

    def tell(self, frame: bytes) -> None:
        """Send a control frame, if there is a lane to the peer."""
        if 0 in self.lanes:
            self.lanes[0].send(frame[:HEADER_BYTES], memoryview(frame)[HEADER_BYTES:])

    def send_p2p(self, header: bytes, payload: memoryview, *, owner: PayloadOwner, key: int) -> None:
        self.lanes[P2P_LANE].send(header, payload, owner=owner, key=key)

    def tell_p2p(self, frame: bytes) -> None:
        self.lanes[P2P_LANE].send(frame[:HEADER_BYTES], memoryview(frame)[HEADER_BYTES:])

    def forget_p2p(self, key: int) -> None:
        self.lanes[P2P_LANE].forget(key)

    def forget(self, key: int) -> None:
        for lane in self._bulk:
            lane.forget(key)


def _ignore() -> None: ...
