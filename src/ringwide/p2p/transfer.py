"""One message at one of its two ends: what is to be sent, or where something will be received."""

from collections.abc import Callable
from typing import NoReturn, Protocol

from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import Header
from ringwide.protocol.p2p import Space, dtype_in, segments_of

Done = Callable[[Exception | None], None]


class Transfer:
    """What both ends of a message have. `peer` is the rank at the other end, if it is known; `number` likewise."""

    def __init__(self, *, peer: int | None, space: int, tag: int, nbytes: int, what: str, on_done: Done) -> None:
        self.peer, self.space, self.tag, self.nbytes, self.what = peer, space, tag, nbytes, what
        self.on_done = on_done
        self.number = 0
        self.progress, self.progress_seen = 0, -1
        self.opened_at = self.progress_at = 0.0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __str__(self) -> str:
        named = f"with tag {self.tag}" if self.space == Space.MESSAGES else f"of exchange {self.tag}"
        return f"the message {self.way} {named} ({self.what})"

    @property
    def way(self) -> str:
        raise NotImplementedError

    @property
    def dtype(self) -> str:
        return dtype_in(self.what)


class SegmentSender(Protocol):
    """Who sends on, when a segment has left."""

    def send_on(self, transfer: "OutgoingTransfer", /) -> None: ...


class OutgoingTransfer(Transfer):
    """A message that is sent. Its payload belongs to the lane until the transfer is done."""

    peer: int

    def __init__(
        self, payload: memoryview, *, to: int, space: int, tag: int, what: str, on_done: Done, sender: SegmentSender
    ) -> None:
        super().__init__(peer=to, space=space, tag=tag, nbytes=len(payload), what=what, on_done=on_done)
        self.payload = payload
        self._sender = sender
        self.accepted = False
        self.next_segment = 0  # that goes to the lane
        self.in_lane = 0  # segments that the lane has and the kernel has not

    @property
    def way(self) -> str:
        return f"to rank {self.peer}"

    def segment(self, number: int, segment_bytes: int) -> memoryview:
        return self.payload[number * segment_bytes : (number + 1) * segment_bytes]

    def has_left(self, segment_bytes: int) -> bool:
        return self.accepted and not self.in_lane and self.next_segment == segments_of(self.nbytes, segment_bytes)

    def sent(self) -> None:
        """One segment has left for the kernel."""
        self.progress += 1
        self.in_lane -= 1
        self._sender.send_on(self)


class IncomingTransfer(Transfer):
    """A message that is received, into memory of its own: nobody else's until it is complete.

    `source` is the rank from which it is wanted, None: from anybody. `take_memory` is asked when something fits.
    """

    def __init__(
        self,
        *,
        source: int | None,
        space: int,
        tag: int,
        nbytes: int,
        what: str,
        on_done: Done,
        take_memory: Callable[[], memoryview],
    ) -> None:
        super().__init__(peer=source, space=space, tag=tag, nbytes=nbytes, what=what, on_done=on_done)
        self.source = source
        self.take_memory = take_memory
        self.memory = memoryview(b"")
        self.landed = 0  # bytes, in whole segments
        self.landing = False  # the lane has a place in it, for the next segment

    @property
    def way(self) -> str:
        return "from any rank" if self.peer is None else f"from rank {self.peer}"

    @property
    def complete(self) -> bool:
        return self.landed == self.nbytes

    def check(self, header: Header, segment_bytes: int) -> None:
        """Is this what comes next? Asked before a byte of it is used."""
        segment, nbytes = self.landed // segment_bytes, min(segment_bytes, self.nbytes - self.landed)
        if (header.codec, header.bucket, header.hop, header.fingerprint) != (0, 0, 0, 0):
            self._refuse("with fields that a message does not have")
        if header.segment != segment:
            self._refuse(f"segment {header.segment}, where {segment} comes next")
        if header.payload_bytes != nbytes:
            self._refuse(f"segment {segment} in {header.payload_bytes} bytes, where it has {nbytes}")

    def _refuse(self, problem: str) -> NoReturn:
        raise RemoteProtocolError(f"rank {self.peer} sent message {self.number}: {problem}")

    def place(self, nbytes: int) -> memoryview:
        """Where the next bytes go."""
        return self.memory[self.landed : self.landed + nbytes]

    def land(self, payload: memoryview) -> None:
        place = self.place(len(payload))
        if payload.obj is not place.obj:  # else it has landed right there
            place[:] = payload
        self.landed += len(payload)
        self.landing = False
        self.progress += 1
