"""Transfers: messages at one of their two ends, and the state that both halves of an endpoint share."""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

from ringwide.collectives.deadlines import Clock
from ringwide.errors import CollectiveAborted, MessageMismatch, PeerLeft, RemoteProtocolError, RingwideError
from ringwide.protocol.frame import HEADER_BYTES, FrameKind, Header, key_of, news
from ringwide.protocol.p2p import Offering, Space, dtype_in, numbers_from, segments_of

Done = Callable[[Exception | None], None]


class Transfer:
    """Base of both ends of a message. `peer` is the rank at the other end, if it is known; `number` likewise."""

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
        return f"the message {self.direction} {named} ({self.what})"

    @property
    def direction(self) -> str:
        raise NotImplementedError

    @property
    def dtype(self) -> str:
        return dtype_in(self.what)


class SegmentSender(Protocol):
    """Sends the next segment of a transfer when one has left."""

    def send_on(self, transfer: "OutgoingTransfer", /) -> None: ...


class OutgoingTransfer(Transfer):
    """The sending end of a message. Its payload belongs to the lane until the transfer is done."""

    peer: int

    def __init__(
        self, payload: memoryview, *, to: int, space: int, tag: int, what: str, on_done: Done, sender: SegmentSender
    ) -> None:
        super().__init__(peer=to, space=space, tag=tag, nbytes=len(payload), what=what, on_done=on_done)
        self.payload = payload
        self._sender = sender
        self.accepted = False
        self.next_segment = 0  # the next to go to the lane
        self.in_lane = 0  # segments that the lane has and the kernel does not

    @property
    def direction(self) -> str:
        return f"to rank {self.peer}"

    def segment(self, number: int, segment_bytes: int) -> memoryview:
        return self.payload[number * segment_bytes : (number + 1) * segment_bytes]

    def has_left(self, segment_bytes: int) -> bool:
        return self.accepted and not self.in_lane and self.next_segment == segments_of(self.nbytes, segment_bytes)

    def sent(self) -> None:
        """The kernel has taken one segment."""
        self.progress += 1
        self.in_lane -= 1
        self._sender.send_on(self)


class IncomingTransfer(Transfer):
    """The receiving end of a message, with memory of its own until it is complete.

    `source` is the rank from which it is expected, None: any rank. `take_memory` is called when an offer matches.
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
        self.landing = False  # the lane may be writing the next segment into it

    @property
    def direction(self) -> str:
        return "from any rank" if self.peer is None else f"from rank {self.peer}"

    @property
    def complete(self) -> bool:
        return self.landed == self.nbytes

    def check(self, header: Header, segment_bytes: int) -> None:
        """Refuse a frame that is not the next segment, before a byte of it is used."""
        segment, nbytes = self.landed // segment_bytes, min(segment_bytes, self.nbytes - self.landed)
        if (header.codec, header.bucket, header.hop, header.fingerprint) != (0, 0, 0, 0):
            self._refuse("with fields that a message does not have")
        if header.segment != segment:
            self._refuse(f"segment {header.segment}, where {segment} comes next")
        if header.payload_bytes != nbytes:
            self._refuse(f"segment {segment} in {header.payload_bytes} bytes, where it has {nbytes}")

    def _refuse(self, problem: str) -> NoReturn:
        raise RemoteProtocolError(f"rank {self.peer} sent message {self.number}: {problem}")

    def destination(self, nbytes: int) -> memoryview:
        """Memory for the next bytes."""
        return self.memory[self.landed : self.landed + nbytes]

    def land(self, payload: memoryview) -> None:
        destination = self.destination(len(payload))
        if payload.obj is not destination.obj:  # else it has landed right there
            destination[:] = payload
        self.landed += len(payload)
        self.landing = False
        self.progress += 1


class ShownTransfers:
    """Held transfers that were shown to the other rank, by number, until it answers."""

    def __init__(self) -> None:
        self.transfers: OrderedDict[int, OutgoingTransfer] = OrderedDict()
        self._in_lane: deque[int] = deque()
        self.last_left = 0

    def add(self, transfer: OutgoingTransfer) -> None:
        self.transfers[transfer.number] = transfer
        self._in_lane.append(transfer.number)

    def sent(self) -> None:
        """The kernel has taken the next HELD frame: from now on it can be answered."""
        self.last_left = self._in_lane.popleft()


class PeerTransfers:
    """The transfers under way between this rank and `peer`, by number."""

    def __init__(self, rank: int, peer: int, kept_limit_bytes: int) -> None:
        self.peer = peer
        self._ours, self._theirs = numbers_from(rank, peer), numbers_from(peer, rank)
        self._next_of_ours, self.next_of_theirs = next(self._ours), next(self._theirs)
        self.unaccepted: dict[OutgoingTransfer, None] = {}  # held, shown or offered
        self.offering: dict[int, Offering[OutgoingTransfer]] = {space: Offering(kept_limit_bytes) for space in Space}
        self.offered: dict[int, OutgoingTransfer] = {}  # not answered yet
        self.shown = ShownTransfers()
        self.leaving: dict[int, OutgoingTransfer] = {}  # accepted
        self.turns: OrderedDict[OutgoingTransfer, None] = OrderedDict()  # those with a segment that waits for its turn
        self.in_lane, self.filling_lane = 0, False  # segments of all transfers
        self.arriving: dict[int, IncomingTransfer] = {}
        self.unwanted: dict[int, int] = {}  # accepted, then given up: bytes that may still come
        self.departed: PeerLeft | None = None
        self.lane_ended = False

    def number(self, transfer: OutgoingTransfer, kind: FrameKind) -> None:
        """Give the transfer the next number, as it is offered or shown."""
        transfer.number, self._next_of_ours = self._next_of_ours, next(self._ours)
        if kind == FrameKind.OFFER:
            self.offered[transfer.number] = transfer
        else:
            self.shown.add(transfer)

    def answered(self, number: int) -> OutgoingTransfer | None:
        """Remove and return the transfer with this number, if it waits for an answer."""
        return self.offered.pop(number, None) or self.shown.transfers.pop(number, None)

    def is_ours(self, number: int) -> bool:
        return number % 2 == self._next_of_ours % 2

    def expect_offer(self, number: int) -> None:
        if number != self.next_of_theirs:
            raise RemoteProtocolError(
                f"rank {self.peer} offered message {number}, where {self.next_of_theirs} comes next"
            )
        self.next_of_theirs = next(self._theirs)

    def check_known(self, number: int) -> None:
        """Refuse a number that was never offered. One that is over is fine: the peer may not have known."""
        if number < 1 or number >= (self._next_of_ours if self.is_ours(number) else self.next_of_theirs):
            raise RemoteProtocolError(f"rank {self.peer} refers to message {number}, which was never offered")

    def drop(self, number: int, nbytes: int) -> None:
        """Count bytes of a message that was given up here."""
        left = self.unwanted.get(number, 0) - nbytes
        if number not in self.unwanted or left < 0:
            raise RemoteProtocolError(f"rank {self.peer} sent a part of message {number}, which was not accepted")
        if left:
            self.unwanted[number] = left
        else:
            del self.unwanted[number]

    def outgoing(self) -> list[OutgoingTransfer]:
        return [*self.unaccepted, *self.leaving.values()]


AnyTransfer = OutgoingTransfer | IncomingTransfer
LEAVING_SECONDS = 0.5
"""Time that a rank has to leave before the other end is told of a message that it has given up."""


class SegmentOwner(Protocol):
    """Owner of a payload, told when it has left."""

    def sent(self) -> None: ...


class P2PLink(Protocol):
    """The part of a link that an endpoint needs."""

    def send_p2p(self, header: bytes, payload: memoryview, *, owner: SegmentOwner, key: int) -> None: ...

    def tell_p2p(self, frame: bytes) -> None: ...

    def forget_p2p(self, key: int) -> None: ...


class OpenTransfers:
    """The open transfers of one rank, shared by both halves of its endpoint, and how they end."""

    def __init__(
        self,
        *,
        rank: int,
        links: Mapping[int, P2PLink],
        clock: Clock,
        segment_bytes: int,
        on_open: Callable[[], None],
        epoch: int,
        kept_limit_bytes: int,
    ) -> None:
        self.rank, self.links, self.segment_bytes, self.epoch = rank, links, segment_bytes, epoch
        self._clock, self._on_open = clock, on_open
        self.kept_limit_bytes = kept_limit_bytes
        self.by_peer = {peer: PeerTransfers(rank, peer, kept_limit_bytes) for peer in links}
        self.open: dict[AnyTransfer, None] = {}  # in the order in which they were opened
        self.over: RingwideError | None = None

    def enter(self, transfer: AnyTransfer) -> None:
        transfer.opened_at = transfer.progress_at = self._clock.time()
        self.open[transfer] = None
        self._on_open()

    def end(self, transfer: AnyTransfer, error: Exception | None) -> None:
        if transfer in self.open:
            del self.open[transfer]
            transfer.on_done(error)

    def tell(self, peer: int, frame: bytes, owner: SegmentOwner | None = None) -> None:
        """Send a control frame. `owner`, if there is one, is told when it has left."""
        if self.over is not None or self.by_peer[peer].departed is not None:
            return
        if owner is None:
            self.links[peer].tell_p2p(frame)
        else:
            self.links[peer].send_p2p(frame[:HEADER_BYTES], memoryview(frame)[HEADER_BYTES:], owner=owner, key=0)

    def key_of(self, transfer: Transfer) -> int:
        return key_of(self.epoch, transfer.number)

    def say(self, peer: int, kind: FrameKind, number: int, text: str = "") -> None:
        self.tell(peer, news(kind, text, collective=number, epoch=self.epoch))

    def say_withdrawn(self, peer: int, number: int, reason: str, *, leaving: bool) -> None:
        """Send WITHDRAW. If this rank is `leaving`, its goodbye does that, provided that it comes soon."""
        self.soon(lambda: self.say(peer, FrameKind.WITHDRAW, number, reason), leaving=leaving)

    def soon(self, act: Callable[[], None], *, leaving: bool) -> None:
        if leaving:
            self._clock.call_later(LEAVING_SECONDS, act)
        else:
            act()

    def aborted(self, transfer: Transfer, by: int, reason: str) -> CollectiveAborted:
        return CollectiveAborted(number=0, what=str(transfer), by=by, reason=reason)

    def mismatch(self, transfer: AnyTransfer, sent: str, expected: str) -> MessageMismatch:
        peer = self.rank if transfer.peer is None else transfer.peer
        sender, receiver = (self.rank, peer) if isinstance(transfer, OutgoingTransfer) else (peer, self.rank)
        return MessageMismatch(
            tag=transfer.tag, sender=sender, sent=sent, receiver=receiver, expected=expected, rank=self.rank
        )
