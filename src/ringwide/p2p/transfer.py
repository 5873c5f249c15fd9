"""One message at one of its two ends: what is to be sent, or where something will be received."""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

from ringwide.collectives.deadlines import Clock
from ringwide.errors import CollectiveAborted, MessageMismatch, PeerLeft, RemoteProtocolError, RingwideError
from ringwide.protocol.frame import HEADER_BYTES, FrameKind, Header, news
from ringwide.protocol.p2p import Offering, Space, dtype_in, numbers_from, segments_of

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


# What both halves of a endpoint work with: every open transfer, how one ends, and what the other end is told.


class Shown:
    """Letters that are held and were shown to the other rank, by number, until it answers."""

    def __init__(self) -> None:
        self.transfers: OrderedDict[int, OutgoingTransfer] = OrderedDict()
        self._in_lane: deque[int] = deque()
        self.last_left = 0

    def add(self, transfer: OutgoingTransfer) -> None:
        self.transfers[transfer.number] = transfer
        self._in_lane.append(transfer.number)

    def sent(self) -> None:
        """The next of them has left for the kernel: from now on it can be answered."""
        self.last_left = self._in_lane.popleft()


class PeerTransfers:
    """The transfers under way between this rank and `peer`, by number."""

    def __init__(self, rank: int, peer: int, kept_limit_bytes: int) -> None:
        self.peer = peer
        self._ours, self._theirs = numbers_from(rank, peer), numbers_from(peer, rank)
        self._next_of_ours, self.next_of_theirs = next(self._ours), next(self._theirs)
        self.unaccepted: dict[OutgoingTransfer, None] = {}  # held, shown or offered
        self.offering: dict[int, Offering[OutgoingTransfer]] = {space: Offering(kept_limit_bytes) for space in Space}
        self.offered: dict[int, OutgoingTransfer] = {}  # and not answered
        self.shown = Shown()
        self.leaving: dict[int, OutgoingTransfer] = {}  # accepted
        self.turns: OrderedDict[OutgoingTransfer, None] = (
            OrderedDict()
        )  # of these, those whose next segment waits for its turn
        self.in_lane, self.filling_lane = 0, False  # segments of all of them
        self.arriving: dict[int, IncomingTransfer] = {}
        self.unwanted: dict[int, int] = {}  # accepted and given up: how many bytes may still come
        self.departed: PeerLeft | None = None
        self.lane_ended = False

    def number(self, transfer: OutgoingTransfer, kind: FrameKind) -> None:
        """The transfer is the next one that is offered, or shown."""
        transfer.number, self._next_of_ours = self._next_of_ours, next(self._ours)
        if kind == FrameKind.OFFER:
            self.offered[transfer.number] = transfer
        else:
            self.shown.add(transfer)

    def answered(self, number: int) -> OutgoingTransfer | None:
        """The transfer with this number, if it waits for an answer; it does not any more."""
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
        """What is said of a message that is over may have been said before that was known. Of others it may not."""
        if number < 1 or number >= (self._next_of_ours if self.is_ours(number) else self.next_of_theirs):
            raise RemoteProtocolError(f"rank {self.peer} speaks of message {number}, which nobody has offered")

    def drop(self, number: int, nbytes: int) -> None:
        """A part has come of a message that was given up here."""
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
"""How long a rank may take to leave before the other end hears of a message that it has given up."""


class SegmentOwner(Protocol):
    """Whoever must know when a payload has left."""

    def sent(self) -> None: ...


class P2PLink(Protocol):
    """What p2p needs of a link."""

    def send_p2p(self, header: bytes, payload: memoryview, *, owner: SegmentOwner, number: int) -> None: ...

    def tell_p2p(self, frame: bytes) -> None: ...

    def forget_p2p(self, number: int) -> None: ...


class OpenTransfers:
    """The transfers of one rank."""

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
        self.p2p_with = {peer: PeerTransfers(rank, peer, kept_limit_bytes) for peer in links}
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
        """`owner`, if there is one, is told when the frame has left."""
        if self.over is not None or self.p2p_with[peer].departed is not None:
            return
        if owner is None:
            self.links[peer].tell_p2p(frame)
        else:
            self.links[peer].send_p2p(frame[:HEADER_BYTES], memoryview(frame)[HEADER_BYTES:], owner=owner, number=0)

    def say(self, peer: int, kind: FrameKind, number: int, text: str = "") -> None:
        self.tell(peer, news(kind, text, collective=number, epoch=self.epoch))

    def say_withdrawn(self, peer: int, number: int, reason: str, *, leaving: bool) -> None:
        """One that is `leaving` leaves it to its goodbye to tell the other end, if that comes soon."""
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
