"""One small bucket of one collective under way: a single segment that goes from stop to stop, by the express lanes.

What `Operation` does for any machine, without all that one segment has no use for. What is small costs nothing but
Python, and of ranks that share a core each finds the caches cold: here every line counts.
"""

from collections.abc import Callable, Mapping

import numpy as np

from ringwide.codec.codec import Array
from ringwide.collective.coding import Coding
from ringwide.collective.ledger import RAW
from ringwide.collective.numbers import Numbers, bytes_of
from ringwide.collective.operation import NOTHING, LaneLike, LinkLike, accusation
from ringwide.errors import RemoteProtocolError
from ringwide.protocol.doubling import Schedule
from ringwide.protocol.frame import Header, pack_data
from ringwide.protocol.instruction import Combine, Keep, Script, Send


class ExpressOperation:
    """Executes a schedule. Done when all has arrived: what leaves by an express lane is copied if it has to wait."""

    __slots__ = (
        *("_bucket", "_bytes", "_collective", "_early", "_epoch", "_fingerprint", "_is_saved", "_links", "_numbers"),
        *("_on_done", "_position", "_schedule", "done", "progress"),
    )
    express = True
    coding: Coding | None = None

    def __init__(
        self,
        schedule: Schedule,
        numbers: Numbers,
        links: Mapping[int, LinkLike],
        *,
        bucket: int,
        collective: int,
        fingerprint: int,
        epoch: int,
        on_done: Callable[[int], None],
    ) -> None:
        self._schedule, self._numbers, self._links = schedule, numbers, links
        self._bucket, self._collective, self._fingerprint, self._epoch = bucket, collective, fingerprint, epoch
        self._bytes, self._is_saved = bytes_of(numbers.ours), False
        self._early: dict[int, bytes] = {}  # what came before its turn, by hop
        self._position = 0  # the stop that is next
        self._on_done = on_done
        self.done = False
        self.progress = 0

    def begin(self) -> None:
        if not self._schedule.stops:  # alone in the ring
            self._save()
            self._execute(self._schedule.departure, NOTHING)
            self.done = True
            self._on_done(self._collective)
            return
        self._execute(self._schedule.departure, NOTHING)
        self._save()  # while others still work on their answers

    def waiting_for(self) -> list[int]:
        return [] if self.done else [self._schedule.stops[self._position].peer]

    # -- arrivals

    def check(self, peer: int, header: Header) -> None:
        """May this frame come, and is it as long as it must be? Asked before a byte of its payload is used."""
        position = self._schedule.positions.get((header.hop, peer), -1)
        if position < self._position or header.segment != 0 or header.hop in self._early:
            self._refuse(peer, header, f"at hop {header.hop}, which is not what comes next")
        if header.codec != RAW:
            self._refuse(peer, header, f"with codec number {header.codec}, where it must come raw")
        if header.payload_bytes != len(self._bytes):
            self._refuse(peer, header, f"in {header.payload_bytes} bytes, where it has {len(self._bytes)}")

    def _refuse(self, peer: int, header: Header, problem: str) -> None:
        raise RemoteProtocolError(accusation(peer, header.segment, self._collective, problem))

    def landing(self, lane: LaneLike, header: Header) -> memoryview:
        """Only a frame on a wrong lane asks, and is refused when it has arrived."""
        return lane.scratch.take(header.payload_bytes)

    def arrived(self, lane: LaneLike, header: Header, payload: memoryview) -> None:
        self.progress += 1
        stops = self._schedule.stops
        stop = stops[self._position]
        if stop.hop != header.hop:
            self._early[header.hop] = bytes(payload)
            return
        self._position += 1
        self._execute(stop.script, payload)
        while self._early and (stop := stops[self._position]).hop in self._early:
            self._position += 1
            self._execute(stop.script, memoryview(self._early.pop(stop.hop)))
        if self._position == len(stops):
            self.done = True
            self._on_done(self._collective)

    # -- instructions

    def _execute(self, script: Script, payload: memoryview) -> None:
        for instruction in script:
            if isinstance(instruction, Send):
                self._send(instruction.hop, instruction.peer)
            elif isinstance(instruction, Combine):
                self._combine(payload, instruction.arrival_first)
            elif isinstance(instruction, Keep):
                self._bytes[:] = payload
            elif self._numbers.finish is not None:
                self._numbers.finish(self._numbers.ours)

    def _send(self, hop: int, peer: int) -> None:
        header = pack_data(
            bucket=self._bucket,
            hop=hop,
            epoch=self._epoch,
            segment=0,
            collective=self._collective,
            fingerprint=self._fingerprint,
            payload_bytes=len(self._bytes),
        )
        self._links[peer].send_express(header, self._bytes)

    def _combine(self, payload: memoryview, arrival_first: bool) -> None:
        value = self._numbers.ours
        arrival: Array = np.frombuffer(payload, value.dtype)
        if arrival_first:
            self._numbers.combine(arrival, value, value)
        else:
            self._numbers.combine(value, arrival, value)

    def _save(self) -> None:
        """What will be replaced comes back if the collective fails."""
        if self._numbers.saved is not None:
            self._numbers.saved[...] = self._numbers.ours
            self._is_saved = True

    # -- the end

    def succeed(self) -> None:
        """The whole collective has succeeded."""

    def undo(self) -> None:
        """It has succeeded, but its caller was gone by then: the bucket holds what it held before."""
        self._put_back()

    def abandon(self) -> None:
        """The collective has failed: the bucket holds what it held before."""
        self._put_back()

    def _put_back(self) -> None:
        if self._is_saved and self._numbers.saved is not None:
            self._numbers.ours[...] = self._numbers.saved
            self._is_saved = False
