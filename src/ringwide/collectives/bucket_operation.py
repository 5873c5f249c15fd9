"""Operation on one bucket of a collective: carries out a machine's instructions on real numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, Protocol

import numpy as np

from ringwide.collectives.plan import BucketPlan
from ringwide.compression.autotune import RAW, Ledger
from ringwide.compression.codecs.base import Array
from ringwide.compression.jobs import CodecJobs
from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import Header, key_of, pack_data
from ringwide.protocol.instruction import Combine, Keep, Relay, Script, Send
from ringwide.tensors.bucket import Bucket, bytes_of
from ringwide.transport.lane_buffers import Scratch


class Snapshot:
    """The numbers that were replaced. `saved` is None where nobody will want them back."""

    __slots__ = ("_bounds", "_is_saved", "_ours", "_saved")

    def __init__(self, ours: Array, saved: Array | None, bounds: Sequence[tuple[int, int]]) -> None:
        self._ours, self._saved, self._bounds = ours, saved, bounds
        self._is_saved = bytearray(0 if saved is None else len(bounds))

    def save(self, segment: int) -> None:
        """This segment is about to be replaced, perhaps not for the first time."""
        if self._saved is not None and not self._is_saved[segment]:
            first, last = self._bounds[segment]
            self._saved[first:last] = self._ours[first:last]
            self._is_saved[segment] = 1

    def put_back(self) -> None:
        """Whoever might still write to the numbers must have been stopped before."""
        if self._saved is None:
            return
        for segment, (first, last) in enumerate(self._bounds):
            if self._is_saved[segment]:
                self._ours[first:last] = self._saved[first:last]
        self._saved = None


NOTHING = memoryview(bytearray())
RELAYED_LIMIT_BYTES = 32 * 1024 * 1024
"""How much may wait to leave in memory beyond the bucket and its snapshot."""


class SendOwner(Protocol):
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


class OtherEpochs(Protocol):
    """Receiver of what happens on a lane that a ring shares with its subgroups: frames with an epoch that is not 0."""

    def landing(self, lane: LaneLike, header: Header, here: memoryview | None = None, /) -> memoryview | None: ...

    def arrived(self, lane: LaneLike, header: Header, payload: memoryview) -> None: ...

    def ended(self, lane: LaneLike) -> None: ...

    def lost(self, lane: LaneLike, reason: Exception) -> None: ...


class LinkLike(Protocol):
    """What a collective needs of a link; the simulator has its own."""

    def send_express(self, header: bytes, payload: memoryview) -> None: ...

    def send_bulk(
        self, header: bytes, payload: memoryview, *, stripe: int, owner: SendOwner | None, key: int
    ) -> None: ...

    def reserve_bulk(self, nbytes: int, *, stripe: int) -> memoryview | None: ...

    def send_reserved(self, header: bytes, *, stripe: int) -> None: ...

    def tell(self, frame: bytes) -> None: ...

    def forget(self, key: int) -> None: ...


class FrameFields(NamedTuple):
    """What all frames of a bucket have in their headers."""

    bucket: int
    collective: int
    fingerprint: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BucketTask:
    """One bucket of one collective: what is to be done, with whom, and who is told in the end."""

    plan: BucketPlan
    numbers: Bucket
    links: Mapping[int, LinkLike]
    ledgers: Mapping[int, Ledger]
    fields: FrameFields
    on_done: Callable[[int], None]
    """Called with the number of the collective."""


class Operation:
    """Executes one machine. Done when all has arrived *and* all has left: until then the memory is not the caller's."""

    codec_jobs: CodecJobs | None = None

    def __init__(self, task: BucketTask) -> None:
        plan, numbers = task.plan, task.numbers
        self._fields, self._on_done, self._collective = task.fields, task.on_done, task.fields.collective
        self._key = key_of(task.fields.epoch, task.fields.collective)
        self._machine = plan.machine()
        self._bounds, self._itemsize, self.express = plan.layout.bounds, plan.layout.itemsize, plan.express
        self._numbers, self._links, self._ledgers = numbers, task.links, task.ledgers
        self._bytes, self._snapshot = bytes_of(numbers.ours), Snapshot(numbers.ours, numbers.saved, self._bounds)
        self._early: dict[tuple[int, int], memoryview] = {}  # (segment, hop) whose turn has not come
        self._unsent = 0
        self.done = False
        self.progress = 0

    def begin(self) -> None:
        self._unsent += 1  # a root expects nothing: without this it would be done when its first segment has left
        for segment, script in self._machine.begin():
            self._execute(script, segment, NOTHING, None)
        self._unsent -= 1
        self._check_done()

    def waiting_for(self) -> list[int]:
        return list(self._machine.waiting_for())

    # -- arrivals

    def check(self, peer: int, header: Header) -> None:
        """May this frame come, and is it as long as it must be? Asked before a byte of its payload is used."""
        self._check_turn(peer, header)
        raw_bytes = self._raw_bytes(header.segment, header.hop)
        if header.codec != RAW:
            self._refuse(peer, header.segment, f"with codec number {header.codec}, where it must come raw")
        if header.payload_bytes != raw_bytes:
            self._refuse(peer, header.segment, f"in {header.payload_bytes} bytes, where it has {raw_bytes}")

    def _check_turn(self, peer: int, header: Header) -> None:
        segment, hop = header.segment, header.hop
        if not self._machine.expects(peer, segment, hop) or (segment, hop) in self._early:
            self._refuse(peer, segment, f"at hop {hop}, which is not what comes next")

    def _refuse(self, peer: int, segment: int, problem: str) -> NoReturn:
        raise RemoteProtocolError(self._accuse(peer, segment, problem))

    def _accuse(self, peer: int, segment: int, problem: str) -> str:
        return accusation(peer, segment, self._collective, problem)

    def _raw_bytes(self, segment: int, hop: int) -> int:
        """Bytes of what arrives at this hop, before it is encoded."""
        return self._segment_bytes(segment)

    def _segment_bytes(self, segment: int) -> int:
        first, last = self._bounds[segment]
        return (last - first) * self._itemsize

    def landing(self, lane: LaneLike, header: Header, here: memoryview | None) -> memoryview:
        """Where a large payload goes. What is kept lands in its place. What is added may stay `here`, in memory that is
        shared with the peer; else it lands in the lane's scratch."""
        if not self._machine.combines(header.hop):
            self._snapshot.save(header.segment)
            return self._value(header.segment)
        if self._machine.overwrites_sent:  # it may have to wait for its turn, so it needs memory of its own
            return memoryview(bytearray(header.payload_bytes))
        return here or lane.scratch.take(header.payload_bytes)

    def arrived(self, lane: LaneLike, header: Header, payload: memoryview) -> None:
        self.progress += 1
        segment, hop = header.segment, header.hop
        if not self.express:
            self._ledgers[lane.peer].note_received(header.codec, self._raw_bytes(segment, hop), len(payload))
        script = self._machine.arrive(segment, hop)
        if not script:
            self._early[segment, hop] = memoryview(bytes(payload))
            return
        self._execute(script, segment, payload, lane, header.codec)
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

    def _execute(
        self, script: Script, segment: int, payload: memoryview, lane: LaneLike | None, codec: int = RAW
    ) -> None:
        for instruction in script:  # by isinstance: a match statement takes three times as long here
            if isinstance(instruction, Send):
                self._send(segment, self._outgoing(segment), instruction.hop, instruction.peer, self)
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
        self._snapshot.save(segment)
        value = self._numbers.ours[first:last]
        arrival: Array = np.frombuffer(payload, dtype=value.dtype)
        if arrival_first:
            self._numbers.combine(arrival, value, value)
        else:
            self._numbers.combine(value, arrival, value)

    def _keep(self, segment: int, payload: memoryview) -> None:
        place = self._value(segment)
        if payload.obj is not place.obj:  # else it has landed right there
            self._snapshot.save(segment)
            place[:] = payload

    def _finish(self, segment: int) -> None:
        first, last = self._bounds[segment]
        self._snapshot.save(segment)  # alone in the ring, nothing was combined before
        total = self._numbers.ours[first:last]
        self._numbers.complete(total, total)

    def _relay(self, segment: int, payload: memoryview, lane: LaneLike | None, relay: Relay) -> None:
        """Add our numbers to the sum on its way: into the memory that the next rank reads, or else where it has landed,
        in the cache. Too many that wait to leave wait in `ours`."""
        if lane is None or self._unsent * len(payload) >= RELAYED_LIMIT_BYTES:
            self._combine(segment, payload, True)
            self._send(segment, self._value(segment), relay.hop, relay.peer, self)
            return
        first, last = self._bounds[segment]
        arrival: Array = np.frombuffer(payload, dtype=self._numbers.ours.dtype)
        room = self._links[relay.peer].reserve_bulk(len(payload), stripe=segment)
        onward = lane.scratch.take(len(payload)) if room is None else room
        total: Array = np.frombuffer(onward, dtype=arrival.dtype)
        self._numbers.combine(arrival, self._numbers.ours[first:last], total)
        if room is not None:
            self._send_reserved(segment, len(payload), relay)
            return
        self._send_from_scratch(segment, onward, lane.scratch, relay)

    def _send_from_scratch(self, segment: int, onward: memoryview, scratch: Scratch, relay: Relay) -> None:
        borrower = Borrower(self, scratch)
        self._send(segment, onward, relay.hop, relay.peer, borrower)
        if not borrower.left:
            borrower.lent = scratch.lend()

    def _outgoing(self, segment: int) -> memoryview:
        """The value of a segment, which is about to be sent."""
        return self._value(segment)

    def _value(self, segment: int) -> memoryview:
        first, last = self._bounds[segment]
        return self._bytes[first * self._itemsize : last * self._itemsize]

    def _send(self, segment: int, payload: memoryview, hop: int, peer: int, owner: SendOwner, codec: int = RAW) -> None:
        header, link = self._header(segment, len(payload), hop, codec), self._links[peer]
        if self.express:
            link.send_express(header, payload)
            return
        self._ledgers[peer].note_sent(codec, self._raw_bytes(segment, hop), len(payload))
        copied = self._machine.overwrites_sent
        self._unsent += not copied
        link.send_bulk(header, payload, stripe=segment, owner=None if copied else owner, key=self._key)

    def _send_reserved(self, segment: int, nbytes: int, relay: Relay) -> None:
        self._ledgers[relay.peer].note_sent(RAW, nbytes, nbytes)
        self._links[relay.peer].send_reserved(self._header(segment, nbytes, relay.hop, RAW), stripe=segment)
        self.progress += 1

    def _header(self, segment: int, payload_bytes: int, hop: int, codec: int) -> bytes:
        bucket, collective, fingerprint, epoch = self._fields
        return pack_data(
            codec=codec,
            bucket=bucket,
            hop=hop,
            epoch=epoch,
            segment=segment,
            collective=collective,
            fingerprint=fingerprint,
            payload_bytes=payload_bytes,
        )

    # -- the end

    def sent(self) -> None:
        """One of our payloads has left for the kernel."""
        self.progress += 1
        self._unsent -= 1
        self._check_done()

    def _check_done(self) -> None:
        if self._machine.done and not self._unsent and not self.done:
            self.done = True
            self._on_done(self._collective)

    def succeed(self) -> None:
        """The whole collective has succeeded."""

    def undo(self) -> None:
        """It has succeeded, but its caller was gone by then: the bucket holds what it held before."""
        self._snapshot.put_back()

    def abandon(self) -> None:
        """The collective has failed: the bucket holds what it held before."""
        self._snapshot.put_back()


def accusation(peer: int, segment: int, collective: int, problem: str) -> str:
    return f"rank {peer} sent segment {segment} of collective {collective} {problem}"


class Borrower:
    """Owns one relayed payload while it waits, in its lane's scratch, for its turn to leave."""

    __slots__ = ("_operation", "_scratch", "left", "lent")

    def __init__(self, operation: Operation, scratch: Scratch) -> None:
        self._operation, self._scratch = operation, scratch
        self.lent: memoryview | None = None
        self.left = False

    def sent(self) -> None:
        self.left = True
        if self.lent is not None:
            self._scratch.give_back(self.lent)
        self._operation.sent()
