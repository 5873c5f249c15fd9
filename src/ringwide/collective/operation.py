"""One bucket of one collective under way: a machine's instructions carried out on real numbers."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ringwide.collective.plan import Part
from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import Header, pack_data
from ringwide.protocol.instruction import Combine, Keep, Relay, Script, Send
from ringwide.transport.scratch import Scratch

Array = npt.NDArray[Any]
Combiner = Callable[[Array, Array, Array], object]
"""combine(left, right, out)"""

_NOTHING = memoryview(bytearray())
RELAYED_LIMIT_BYTES = 32 * 1024 * 1024
"""How much may wait to leave in memory beyond the two buckets."""


class Numbers(NamedTuple):
    """What a bucket brings to a collective.

    `ours` is only read. Sums and totals are written to `work`, each place at most once a lap; the two may be the same
    memory, because a rank's own numbers are needed only until it has added them.
    """

    ours: Array
    work: Array
    combine: Combiner
    finish: Callable[[Array], object] | None = None


class Owner(Protocol):
    """Whoever must know when a payload has left."""

    def sent(self) -> None: ...


class LaneLike(Protocol):
    """What a collective needs of the lane on which a frame comes; the simulator has its own."""

    @property
    def peer(self) -> int: ...

    @property
    def index(self) -> int: ...

    @property
    def scratch(self) -> Scratch: ...

    def resume(self) -> None: ...


class LinkLike(Protocol):
    """What a collective needs of a link; the simulator has its own."""

    def send_express(self, header: bytes, payload: memoryview) -> None: ...

    def send_bulk(
        self, header: bytes, payload: memoryview, *, stripe: int, owner: Owner | None, collective: int
    ) -> None: ...

    def tell(self, frame: bytes) -> None: ...

    def forget(self, collective: int) -> None: ...


class Operation:
    """Executes one machine. Done when all has arrived *and* all has left: until then the memory is not the caller's."""

    def __init__(
        self,
        *,
        part: Part,
        numbers: Numbers,
        links: Mapping[int, LinkLike],
        bucket: int,
        collective: int,
        fingerprint: int,
        epoch: int,
        on_done: Callable[[], None],
    ) -> None:
        self._machine = part.machine()
        self._bounds, self._itemsize, self.express = part.layout.bounds, part.layout.itemsize, part.express
        self._numbers, self._links = numbers, links
        self._bucket, self._collective, self._fingerprint, self._epoch = bucket, collective, fingerprint, epoch
        self._own_bytes = self._work_bytes = _bytes_of(numbers.work)
        if numbers.ours is not numbers.work:
            self._own_bytes = _bytes_of(numbers.ours)
        self._summed = bytearray(len(self._bounds))  # 1: the value of this segment is in `work`, no longer in `ours`
        self._early: dict[tuple[int, int], memoryview] = {}  # (segment, hop) whose turn has not come
        self._unsent = 0
        self._on_done = on_done
        self.done = False
        self.progress = 0

    def begin(self) -> None:
        self._unsent += 1  # a root expects nothing: without this it would be done when its first segment has left
        for segment, script in self._machine.begin():
            self._execute(script, segment, _NOTHING, None)
        self._unsent -= 1
        self._check_done()

    def waiting_for(self) -> list[int]:
        return list(self._machine.waiting_for())

    # -- arrivals

    def check(self, peer: int, header: Header) -> None:
        """May this frame come, and is it as long as it must be? Asked before a byte of its payload is used."""
        segment = header.segment
        if not self._machine.expects(peer, segment, header.hop) or (segment, header.hop) in self._early:
            raise RemoteProtocolError(
                f"rank {peer} sent segment {segment} at hop {header.hop} of collective {self._collective}, "
                "which is not what comes next"
            )
        first, last = self._bounds[segment]
        if header.payload_bytes != (last - first) * self._itemsize:
            raise RemoteProtocolError(
                f"rank {peer} sent {header.payload_bytes} bytes as segment {segment} of collective "
                f"{self._collective}, which has {(last - first) * self._itemsize}"
            )

    def landing(self, lane: LaneLike, header: Header) -> memoryview:
        """Where a large payload goes: what will be added lands in the lane's scratch, what is kept in its place."""
        first, last = self._bounds[header.segment]
        if not self._machine.combines(header.hop):
            return self._work_bytes[first * self._itemsize : last * self._itemsize]
        if self._machine.overwrites_sent:  # it may have to wait for its turn, so it needs memory of its own
            return memoryview(bytearray(header.payload_bytes))
        return lane.scratch.take(header.payload_bytes)

    def arrived(self, lane: LaneLike, header: Header, payload: memoryview) -> None:
        self.progress += 1
        segment, hop = header.segment, header.hop
        script = self._machine.arrive(segment, hop)
        if not script:
            self._early[segment, hop] = memoryview(bytes(payload))
            return
        self._execute(script, segment, payload, lane)
        if self._early:
            self._execute_early(segment)
        self._check_done()

    def _execute_early(self, segment: int) -> None:
        """The segment has moved on: what came too early may be due now."""
        for key in sorted(key for key in self._early if key[0] == segment):
            script = self._machine.arrive(*key)
            if not script:
                return
            self._execute(script, segment, self._early.pop(key), None)

    # -- instructions

    def _execute(self, script: Script, segment: int, payload: memoryview, lane: LaneLike | None) -> None:
        for instruction in script:  # by isinstance: a match statement takes three times as long here
            if isinstance(instruction, Send):
                self._send(segment, self._value(segment), instruction.hop, instruction.peer, self)
            elif isinstance(instruction, Combine):
                self._combine(segment, payload, instruction.arrival_first)
            elif isinstance(instruction, Relay):
                self._relay(segment, payload, lane, instruction)
            elif isinstance(instruction, Keep):
                self._keep(segment, payload)
            else:
                self._finish(segment)

    def _combine(self, segment: int, payload: memoryview, arrival_first: bool) -> None:
        first, last = self._bounds[segment]
        numbers = self._numbers
        out = numbers.work[first:last]
        value = out if self._summed[segment] else numbers.ours[first:last]
        arrival: Array = np.frombuffer(payload, dtype=out.dtype)
        if arrival_first:
            numbers.combine(arrival, value, out)
        else:
            numbers.combine(value, arrival, out)
        self._summed[segment] = 1

    def _keep(self, segment: int, payload: memoryview) -> None:
        place = self._place(self._work_bytes, segment)
        if payload.obj is not place.obj:  # else it has landed right there
            place[:] = payload
        self._summed[segment] = 1

    def _finish(self, segment: int) -> None:
        numbers = self._numbers
        first, last = self._bounds[segment]
        if not self._summed[segment]:  # alone in the ring: the own numbers are the total
            numbers.work[first:last] = numbers.ours[first:last]
            self._summed[segment] = 1
        if numbers.finish is not None:
            numbers.finish(numbers.work[first:last])

    def _relay(self, segment: int, payload: memoryview, lane: LaneLike | None, relay: Relay) -> None:
        """Add our numbers to the sum where it has landed, in the cache. Too many that wait to leave wait in `work`."""
        if lane is None or self._unsent * len(payload) >= RELAYED_LIMIT_BYTES:
            self._combine(segment, payload, True)
            self._send(segment, self._value(segment), relay.hop, relay.peer, self)
            return
        first, last = self._bounds[segment]
        arrival: Array = np.frombuffer(payload, dtype=self._numbers.work.dtype)
        self._numbers.combine(arrival, self._numbers.ours[first:last], arrival)
        borrower = Borrower(self, lane)
        self._send(segment, payload, relay.hop, relay.peer, borrower)
        if not borrower.left:
            borrower.lent = lane.scratch.lend()

    def _value(self, segment: int) -> memoryview:
        return self._place(self._work_bytes if self._summed[segment] else self._own_bytes, segment)

    def _send(self, segment: int, payload: memoryview, hop: int, peer: int, owner: "Operation | Borrower") -> None:
        header = pack_data(
            bucket=self._bucket,
            hop=hop,
            epoch=self._epoch,
            segment=segment,
            collective=self._collective,
            fingerprint=self._fingerprint,
            payload_bytes=len(payload),
        )
        link = self._links[peer]
        if self.express:
            link.send_express(header, payload)
            return
        copied = self._machine.overwrites_sent
        self._unsent += not copied
        link.send_bulk(header, payload, stripe=segment, owner=None if copied else owner, collective=self._collective)

    def _place(self, memory: memoryview, segment: int) -> memoryview:
        first, last = self._bounds[segment]
        return memory[first * self._itemsize : last * self._itemsize]

    # -- the end

    def sent(self) -> None:
        """One of our payloads has left for the kernel."""
        self.progress += 1
        self._unsent -= 1
        self._check_done()

    def _check_done(self) -> None:
        if self._machine.done and not self._unsent and not self.done:
            self.done = True
            self._on_done()


class Borrower:
    """Owns one relayed payload while it waits, in its lane's scratch, for its turn to leave."""

    __slots__ = ("_lane", "_operation", "left", "lent")

    def __init__(self, operation: Operation, lane: LaneLike) -> None:
        self._operation, self._lane = operation, lane
        self.lent: memoryview | None = None
        self.left = False

    def sent(self) -> None:
        self.left = True
        if self.lent is not None:
            self._lane.scratch.give_back(self.lent)
        self._operation.sent()


def _bytes_of(array: Array) -> memoryview:
    return array.data.cast("B") if array.size else _NOTHING
