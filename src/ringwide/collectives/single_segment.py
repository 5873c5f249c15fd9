"""Operation on a small bucket: a single segment that goes along the tree, by the express lanes.

What `Operation` does for any machine, without all that one segment has no use for. What is small costs nothing but
Python, and of ranks that share a core each finds the caches cold: here every line counts.
"""

from collections.abc import Callable, Mapping

import numpy as np

from ringwide.collectives.bucket_operation import NOTHING, LaneLike, LinkLike, accusation
from ringwide.compression.autotune import RAW
from ringwide.compression.jobs import CodecJobs
from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import Header, pack_data
from ringwide.protocol.tree import TreeSchedule, TreeStep
from ringwide.tensors.bucket import Bucket


class SingleSegmentOperation:
    """Executes a schedule. Done when all has arrived: what leaves by an express lane is copied if it has to wait."""

    express = True
    codec_jobs: CodecJobs | None = None
    done = _is_saved = False
    progress = 0
    _position = 0  # the stop that is next
    _early: Mapping[int, bytes] = {}  # what came before its turn, by hop
    _prepared = -1, b""  # the header of what leaves next, and its hop: packed while there was time

    def __init__(
        self,
        schedule: TreeSchedule,
        numbers: Bucket,
        links: Mapping[int, LinkLike],
        on_done: Callable[[int], None],
        *,
        bucket: int,
        collective: int,
        fingerprint: int,
        epoch: int,
    ) -> None:
        self._schedule, self._numbers, self._links, self._on_done = schedule, numbers, links, on_done
        self._bucket, self._collective, self._fingerprint, self._epoch = bucket, collective, fingerprint, epoch
        self._bytes = numbers.ours.data.cast("B") if numbers.ours.size else NOTHING

    def begin(self) -> None:
        schedule = self._schedule
        if schedule.stops:
            self._carry_out(schedule.first_step, NOTHING)
            self._save()  # while others still work on their answers
            if schedule.next_hop is not None:
                self._prepared = schedule.next_hop, self._header(schedule.next_hop)
        else:  # alone in the ring
            self._save()
            self._carry_out(schedule.first_step, NOTHING)
            self.done = True
            self._on_done(self._collective)

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
        if header.payload_bytes != self._bytes_at(header.hop):
            self._refuse(peer, header, f"in {header.payload_bytes} bytes, where it has {self._bytes_at(header.hop)}")

    def _bytes_at(self, hop: int) -> int:
        """Length of a payload that arrives at this hop."""
        return len(self._bytes)

    def _refuse(self, peer: int, header: Header, problem: str) -> None:
        raise RemoteProtocolError(accusation(peer, header.segment, self._collective, problem))

    def landing(self, lane: LaneLike, header: Header, _: memoryview | None) -> memoryview:
        """Only a frame on a wrong lane asks, and is refused when it has arrived."""
        return lane.scratch.take(header.payload_bytes)

    def arrived(self, lane: LaneLike, header: Header, payload: memoryview) -> None:
        self.progress += 1
        schedule, position = self._schedule, self._position
        if schedule.stops[position].hop != header.hop:
            self._early = {**self._early, header.hop: bytes(payload)}
            return
        self._position = position + 1
        self._carry_out(schedule.steps[position], payload)
        if self._early:
            self._go_on()
        if self._position == len(schedule.stops):
            self.done = True
            self._on_done(self._collective)

    def _go_on(self) -> None:
        """What came too early may be due now."""
        stops, steps, early = self._schedule.stops, self._schedule.steps, dict(self._early)
        while early and (hop := stops[self._position].hop) in early:
            self._position += 1
            self._carry_out(steps[self._position - 1], memoryview(early.pop(hop)))
        self._early = early

    def _carry_out(self, step: TreeStep, payload: memoryview) -> None:
        combines, keeps, finishes, hop, peers = step
        if combines:
            self._combine(payload)
        elif keeps:
            self._bytes[:] = payload
        if finishes:
            self._finish()
        if peers:
            prepared, header = self._prepared
            if prepared != hop:
                header = self._header(hop)
            payload = self._outgoing()
            for peer in peers:
                self._links[peer].send_express(header, payload)

    def _header(self, hop: int) -> bytes:
        return pack_data(
            bucket=self._bucket,
            hop=hop,
            epoch=self._epoch,
            segment=0,
            collective=self._collective,
            fingerprint=self._fingerprint,
            payload_bytes=self._bytes_at(hop),
        )

    def _combine(self, payload: memoryview) -> None:
        value = self._numbers.ours
        self._numbers.combine(value, np.frombuffer(payload, value.dtype), value)

    def _finish(self) -> None:
        numbers = self._numbers
        if numbers.finish is not None:
            numbers.finish(numbers.ours)
        if numbers.narrow is not None:
            numbers.narrow(numbers.ours)

    def _outgoing(self) -> memoryview:
        return self._bytes

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
