"""The receiving half of an endpoint: matches offers with receives, and takes in what was accepted.

Messages of a rank to itself are matched here as well, and copied at once.
"""

from ringwide.errors import RemoteProtocolError
from ringwide.p2p.sender import offer_of
from ringwide.p2p.transfer import IncomingTransfer, OpenTransfers, OutgoingTransfer, PeerTransfers
from ringwide.protocol.frame import FrameKind, Header, news
from ringwide.protocol.p2p import Matching, Offer, Space, dtype_in, wanted


class LaterAnswers:
    """Answers LATER to the messages that one peer has shown. One frame at a time answers all up to its number."""

    def __init__(self, transfers: OpenTransfers, peer: int) -> None:
        self._transfers, self._peer = transfers, peer
        self._last = self._answered = 0
        self._in_lane = False

    def add(self, number: int) -> None:
        self._last = number
        self._answer()

    def _answer(self) -> None:
        if not self._in_lane and self._answered < self._last:
            self._in_lane, self._answered = True, self._last
            frame = news(FrameKind.LATER, "", collective=self._last, epoch=self._transfers.epoch)
            self._transfers.tell(self._peer, frame, owner=self)

    def sent(self) -> None:
        self._in_lane = False
        self._answer()


class Receiver:
    """The incoming transfers of one rank, and the offers that match none of them yet."""

    def __init__(self, transfers: OpenTransfers) -> None:
        self._transfers = transfers
        self._matching: Matching[IncomingTransfer] = Matching()
        # Peers that have ever shown a held message.
        self._holders: dict[int, set[int]] = {space: set() for space in Space}
        self._later = {peer: LaterAnswers(transfers, peer) for peer in transfers.by_peer}
        self._own: dict[int, OutgoingTransfer] = {}  # messages to ourselves
        self._own_count = 0

    def post(self, transfer: IncomingTransfer) -> None:
        """Match a new receive, or ask those that may hold a message for it."""
        found = self._matching.posted(transfer, transfer.source, transfer.space, transfer.tag)
        if found is not None:
            self._match(transfer, *found)
        else:
            self._ask_for(transfer)

    def _ask_for(self, transfer: IncomingTransfer) -> None:
        """Ask peers that may hold a matching message."""
        for peer in self._holders[transfer.space]:
            if transfer.source in (None, peer):
                self._transfers.tell(peer, wanted(transfer.space, transfer.tag, self._transfers.epoch))

    def offer_own(self, transfer: OutgoingTransfer) -> None:
        self._own_count += 1
        transfer.number = self._own_count
        self._own[transfer.number] = transfer
        offer = offer_of(transfer)
        receive = self._matching.offered(self._transfers.rank, offer)
        if receive is not None:
            self._match(receive, self._transfers.rank, offer)

    def take_back_own(self, transfer: OutgoingTransfer) -> None:
        del self._own[transfer.number]
        self._matching.withdrawn(self._transfers.rank, transfer.number)

    def stop(self, transfer: IncomingTransfer, reason: str, *, leaving: bool) -> None:
        """Give up a receive. From now on nothing writes to its memory."""
        if self._matching.cancelled(transfer, transfer.source, transfer.space, transfer.tag):
            return
        assert transfer.peer is not None, "it is not waiting for an offer, so it has one"
        with_peer = self._transfers.by_peer[transfer.peer]
        del with_peer.arriving[transfer.number]
        with_peer.unwanted[transfer.number] = transfer.nbytes - transfer.landed
        if transfer.landing:
            self._transfers.links[with_peer.peer].forget_p2p(self._transfers.key_of(transfer))
        self._transfers.say_withdrawn(with_peer.peer, transfer.number, reason, leaving=leaving)

    def forget_offers_of(self, peer: int) -> None:
        self._matching.left(peer)

    # -- an offer matches a receive

    def _match(self, transfer: IncomingTransfer, peer: int, offer: Offer) -> None:
        transfer.peer, transfer.number = peer, offer.number
        if (dtype_in(offer.what), offer.nbytes) != (transfer.dtype, transfer.nbytes):
            self._decline(transfer, peer, offer)
            return
        try:
            transfer.memory = transfer.take_memory()
        except MemoryError as error:
            self._refuse(transfer, peer, f"it has no memory: {error}")
            self._transfers.end(transfer, error)
            return
        if peer == self._transfers.rank:
            self._deliver_own(transfer)
        else:
            self._transfers.by_peer[peer].arriving[offer.number] = transfer
            self._transfers.say(peer, FrameKind.ACCEPT, offer.number)
            self._end_if_complete(transfer)

    def _decline(self, transfer: IncomingTransfer, peer: int, offer: Offer) -> None:
        if peer == self._transfers.rank:
            sent = self._own.pop(offer.number)
            self._transfers.end(sent, self._transfers.mismatch(sent, offer.what, transfer.what))
        else:
            self._transfers.say(peer, FrameKind.DECLINE, offer.number, transfer.what)
        self._transfers.end(transfer, self._transfers.mismatch(transfer, offer.what, transfer.what))

    def _refuse(self, transfer: IncomingTransfer, peer: int, reason: str) -> None:
        """Turn down an offer that matches, because the receive has failed."""
        if peer == self._transfers.rank:
            sent = self._own.pop(transfer.number)
            self._transfers.end(sent, self._transfers.aborted(sent, peer, reason))
        else:
            self._transfers.say(peer, FrameKind.WITHDRAW, transfer.number, reason)

    def _deliver_own(self, transfer: IncomingTransfer) -> None:
        sent = self._own.pop(transfer.number)
        transfer.land(sent.payload)
        self._transfers.end(sent, None)
        self._transfers.end(transfer, None)

    def _end_if_complete(self, transfer: IncomingTransfer) -> None:
        if transfer.complete and transfer.peer is not None:
            del self._transfers.by_peer[transfer.peer].arriving[transfer.number]
            self._transfers.end(transfer, None)

    # -- frames of the other end

    def on_offer(self, with_peer: PeerTransfers, offer: Offer) -> None:
        with_peer.expect_offer(offer.number)
        limit = self._transfers.kept_limit_bytes
        if self._matching.kept_of(with_peer.peer, offer.space) >= limit:
            raise RemoteProtocolError(
                f"rank {with_peer.peer} has offered more than the {limit} bytes that are kept here"
            )
        transfer = self._matching.offered(with_peer.peer, offer)
        if transfer is not None:
            self._match(transfer, with_peer.peer, offer)

    def on_held(self, with_peer: PeerTransfers, offer: Offer) -> None:
        """Accept a held message now, or answer LATER. It is not kept here."""
        with_peer.expect_offer(offer.number)
        self._holders[offer.space].add(with_peer.peer)
        transfer = self._matching.offered(with_peer.peer, offer, keep=False)
        if transfer is not None:
            self._match(transfer, with_peer.peer, offer)
        else:
            self._later[with_peer.peer].add(offer.number)

    def destination_for(self, with_peer: PeerTransfers, header: Header) -> memoryview | None:
        """Memory for this segment. None: its message was given up, or never accepted."""
        transfer = with_peer.arriving.get(header.collective)
        if transfer is None:
            return None
        transfer.check(header, self._transfers.segment_bytes)
        transfer.landing = True
        return transfer.destination(header.payload_bytes)

    def on_data(self, with_peer: PeerTransfers, header: Header, payload: memoryview) -> None:
        transfer = with_peer.arriving.get(header.collective)
        if transfer is None:
            with_peer.drop(header.collective, len(payload))
            return
        transfer.check(header, self._transfers.segment_bytes)
        transfer.land(payload)
        self._end_if_complete(transfer)

    def on_sender_withdrew(self, with_peer: PeerTransfers, number: int, reason: str) -> None:
        """The sender gave up. An offer that was not accepted just disappears."""
        transfer = with_peer.arriving.pop(number, None)
        if transfer is not None:
            self._transfers.end(transfer, self._transfers.aborted(transfer, with_peer.peer, reason))
        else:
            self._matching.withdrawn(with_peer.peer, number)
            with_peer.unwanted.pop(number, None)
