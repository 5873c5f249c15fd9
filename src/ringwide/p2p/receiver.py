"""The half of a endpoint that receives: offers meet receives, and what was accepted arrives.

What a rank sends to itself is matched here as well, and copied when it is.
"""

from ringwide.errors import RemoteProtocolError
from ringwide.p2p.sender import offer_of
from ringwide.p2p.transfer import IncomingTransfer, OpenTransfers, OutgoingTransfer, PeerTransfers
from ringwide.protocol.frame import FrameKind, Header, news
from ringwide.protocol.p2p import Matching, Offer, Space, dtype_in, wanted


class PutOff:
    """Tells one peer that what it has shown is not wanted now: all up to the last, in one frame at a time."""

    def __init__(self, desk: OpenTransfers, peer: int) -> None:
        self._desk, self._peer = desk, peer
        self._last = self._told = 0
        self._in_lane = False

    def add(self, number: int) -> None:
        self._last = number
        self._tell()

    def _tell(self) -> None:
        if not self._in_lane and self._told < self._last:
            self._in_lane, self._told = True, self._last
            frame = news(FrameKind.LATER, "", collective=self._last, epoch=self._desk.epoch)
            self._desk.tell(self._peer, frame, owner=self)

    def sent(self) -> None:
        self._in_lane = False
        self._tell()


class Receiver:
    """Every transfer that is expected, and every offer that nobody has wanted yet."""

    def __init__(self, desk: OpenTransfers) -> None:
        self._desk = desk
        self._matching: Matching[IncomingTransfer] = Matching()
        self._showing: dict[int, set[int]] = {space: set() for space in Space}  # who has ever shown something
        self._put_off = {peer: PutOff(desk, peer) for peer in desk.p2p_with}
        self._own: dict[int, OutgoingTransfer] = {}  # to ourselves
        self._own_count = 0

    def post(self, transfer: IncomingTransfer) -> None:
        found = self._matching.posted(transfer, transfer.source, transfer.space, transfer.tag)
        if found is not None:
            self._match(transfer, *found)
        else:
            self._ask_for(transfer)

    def _ask_for(self, transfer: IncomingTransfer) -> None:
        """Perhaps somebody has it, and holds it."""
        for peer in self._showing[transfer.space]:
            if transfer.source in (None, peer):
                self._desk.tell(peer, wanted(transfer.space, transfer.tag, self._desk.epoch))

    def offer_own(self, transfer: OutgoingTransfer) -> None:
        self._own_count += 1
        transfer.number = self._own_count
        self._own[transfer.number] = transfer
        offer = offer_of(transfer)
        receive = self._matching.offered(self._desk.rank, offer)
        if receive is not None:
            self._match(receive, self._desk.rank, offer)

    def take_back_own(self, transfer: OutgoingTransfer) -> None:
        del self._own[transfer.number]
        self._matching.withdrawn(self._desk.rank, transfer.number)

    def stop(self, transfer: IncomingTransfer, reason: str, *, leaving: bool) -> None:
        """It is given up here. From now on nobody writes to its memory."""
        if self._matching.cancelled(transfer, transfer.source, transfer.space, transfer.tag):
            return
        assert transfer.peer is not None, "what does not wait for an offer has had one"
        p2p = self._desk.p2p_with[transfer.peer]
        del p2p.arriving[transfer.number]
        p2p.unwanted[transfer.number] = transfer.nbytes - transfer.landed
        if transfer.landing:
            self._desk.links[p2p.peer].forget_p2p(transfer.number)
        self._desk.say_withdrawn(p2p.peer, transfer.number, reason, leaving=leaving)

    def forget_offers_of(self, peer: int) -> None:
        self._matching.left(peer)

    # -- an offer meets a receive

    def _match(self, transfer: IncomingTransfer, peer: int, offer: Offer) -> None:
        transfer.peer, transfer.number = peer, offer.number
        if (dtype_in(offer.what), offer.nbytes) != (transfer.dtype, transfer.nbytes):
            self._decline(transfer, peer, offer)
            return
        try:
            transfer.memory = transfer.take_memory()
        except MemoryError as error:
            self._refuse(transfer, peer, f"it has no memory: {error}")
            self._desk.end(transfer, error)
            return
        if peer == self._desk.rank:
            self._deliver_own(transfer)
        else:
            self._desk.p2p_with[peer].arriving[offer.number] = transfer
            self._desk.say(peer, FrameKind.ACCEPT, offer.number)
            self._end_if_complete(transfer)

    def _decline(self, transfer: IncomingTransfer, peer: int, offer: Offer) -> None:
        if peer == self._desk.rank:
            sent = self._own.pop(offer.number)
            self._desk.end(sent, self._desk.mismatch(sent, offer.what, transfer.what))
        else:
            self._desk.say(peer, FrameKind.DECLINE, offer.number, transfer.what)
        self._desk.end(transfer, self._desk.mismatch(transfer, offer.what, transfer.what))

    def _refuse(self, transfer: IncomingTransfer, peer: int, reason: str) -> None:
        """A receive cannot take what it was given."""
        if peer == self._desk.rank:
            sent = self._own.pop(transfer.number)
            self._desk.end(sent, self._desk.aborted(sent, peer, reason))
        else:
            self._desk.say(peer, FrameKind.WITHDRAW, transfer.number, reason)

    def _deliver_own(self, transfer: IncomingTransfer) -> None:
        sent = self._own.pop(transfer.number)
        transfer.land(sent.payload)
        self._desk.end(sent, None)
        self._desk.end(transfer, None)

    def _end_if_complete(self, transfer: IncomingTransfer) -> None:
        if transfer.complete and transfer.peer is not None:
            del self._desk.p2p_with[transfer.peer].arriving[transfer.number]
            self._desk.end(transfer, None)

    # -- what the other end says

    def hear_offer(self, p2p: PeerTransfers, offer: Offer) -> None:
        p2p.expect_offer(offer.number)
        limit = self._desk.kept_limit_bytes
        if self._matching.kept_of(p2p.peer, offer.space) >= limit:
            raise RemoteProtocolError(f"rank {p2p.peer} has offered more than the {limit} bytes that are kept here")
        transfer = self._matching.offered(p2p.peer, offer)
        if transfer is not None:
            self._match(transfer, p2p.peer, offer)

    def hear_held(self, p2p: PeerTransfers, offer: Offer) -> None:
        """Now or later: it is not kept here."""
        p2p.expect_offer(offer.number)
        self._showing[offer.space].add(p2p.peer)
        transfer = self._matching.offered(p2p.peer, offer, keep=False)
        if transfer is not None:
            self._match(transfer, p2p.peer, offer)
        else:
            self._put_off[p2p.peer].add(offer.number)

    def place_for(self, p2p: PeerTransfers, header: Header) -> memoryview | None:
        """Where this segment lands. None: it was given up, or was never accepted."""
        transfer = p2p.arriving.get(header.collective)
        if transfer is None:
            return None
        transfer.check(header, self._desk.segment_bytes)
        transfer.landing = True
        return transfer.place(header.payload_bytes)

    def hear_data(self, p2p: PeerTransfers, header: Header, payload: memoryview) -> None:
        transfer = p2p.arriving.get(header.collective)
        if transfer is None:
            p2p.drop(header.collective, len(payload))
            return
        transfer.check(header, self._desk.segment_bytes)
        transfer.land(payload)
        self._end_if_complete(transfer)

    def hear_withdrawn(self, p2p: PeerTransfers, number: int, reason: str) -> None:
        """An offer that nobody had accepted just disappears."""
        transfer = p2p.arriving.pop(number, None)
        if transfer is not None:
            self._desk.end(transfer, self._desk.aborted(transfer, p2p.peer, reason))
        else:
            self._matching.withdrawn(p2p.peer, number)
            p2p.unwanted.pop(number, None)
