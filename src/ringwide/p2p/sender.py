"""The sending half of an endpoint: offers messages, and sends those that are accepted."""

from ringwide.errors import RemoteProtocolError
from ringwide.p2p.transfer import OpenTransfers, OutgoingTransfer, PeerTransfers
from ringwide.protocol.frame import FrameKind, pack_data
from ringwide.protocol.p2p import Offer, kept_bytes, segments_of

WINDOW = 8
"""Most segments of one message in the lane at a time, so that others get their turn between them."""
LANE_WINDOW = 64
"""Most segments of all messages in the lane, as giving one up takes a search among them."""


class Sender:
    """The outgoing transfers of one rank: first held, then offered, then leaving."""

    def __init__(self, transfers: OpenTransfers) -> None:
        self._transfers = transfers

    def offer(self, transfer: OutgoingTransfer) -> None:
        with_peer = self._transfers.by_peer[transfer.peer]
        with_peer.unaccepted[transfer] = None
        with_peer.offering[transfer.space].add(transfer, transfer.tag, kept_bytes(transfer.what))
        self._offer_more(with_peer, transfer.space)

    def _offer_more(self, with_peer: PeerTransfers, space: int) -> None:
        while (due := with_peer.offering[space].next()) is not None:
            transfer, kind = due
            with_peer.number(transfer, kind)
            owner = with_peer.shown if kind == FrameKind.HELD else None
            self._transfers.tell(with_peer.peer, offer_of(transfer).frame(self._transfers.epoch, kind), owner)

    def _settled(self, with_peer: PeerTransfers, transfer: OutgoingTransfer) -> None:
        """A transfer is accepted or over, which makes room for others to be offered."""
        del with_peer.unaccepted[transfer]
        with_peer.offering[transfer.space].gone(transfer)
        self._offer_more(with_peer, transfer.space)

    def send_on(self, transfer: OutgoingTransfer) -> None:
        """A segment of the transfer has left: send the next."""
        with_peer = self._transfers.by_peer[transfer.peer]
        with_peer.in_lane -= 1
        self._begin_or_end(with_peer, transfer)

    def _begin_or_end(self, with_peer: PeerTransfers, transfer: OutgoingTransfer) -> None:
        self._queue_up(with_peer, transfer)
        if transfer.has_left(self._transfers.segment_bytes):
            del with_peer.leaving[transfer.number]
            self._transfers.end(transfer, None)
        self._fill_lane(with_peer)

    def _queue_up(self, with_peer: PeerTransfers, transfer: OutgoingTransfer) -> None:
        """Queue the next segment of a transfer, if it has one and its window allows it."""
        if transfer.in_lane < WINDOW and transfer.next_segment < segments_of(
            transfer.nbytes, self._transfers.segment_bytes
        ):
            with_peer.turns[transfer] = None

    def _fill_lane(self, with_peer: PeerTransfers) -> None:
        """Fill the lane up to its window, with one segment of each transfer in turn."""
        if with_peer.filling_lane:
            return  # called from `send`: a segment has left at once
        with_peer.filling_lane = True
        while (
            with_peer.turns
            and with_peer.in_lane < LANE_WINDOW
            and self._transfers.over is None
            and with_peer.departed is None
        ):
            transfer, _ = with_peer.turns.popitem(last=False)
            with_peer.in_lane += 1
            self._send_segment(transfer)
            self._queue_up(with_peer, transfer)
        with_peer.filling_lane = False

    def _send_segment(self, transfer: OutgoingTransfer) -> None:
        segment = transfer.next_segment
        payload = transfer.segment(segment, self._transfers.segment_bytes)
        transfer.next_segment += 1
        transfer.in_lane += 1
        header = pack_data(
            bucket=0,
            hop=0,
            epoch=self._transfers.epoch,
            segment=segment,
            collective=transfer.number,
            fingerprint=0,
            payload_bytes=len(payload),
        )
        self._transfers.links[transfer.peer].send_p2p(
            header, payload, owner=transfer, key=self._transfers.key_of(transfer)
        )

    def take_back(self, transfer: OutgoingTransfer, reason: str, *, leaving: bool) -> None:
        """Give up a transfer. From now on nothing reads its payload."""
        with_peer = self._transfers.by_peer[transfer.peer]
        if transfer.number in with_peer.leaving:
            self._take_from_lane(with_peer, transfer)
            self._transfers.say_withdrawn(with_peer.peer, transfer.number, reason, leaving=leaving)
            return
        if with_peer.answered(transfer.number) is not None:
            # At once, even if this rank is leaving: the other end counts our offers.
            self._transfers.say(with_peer.peer, FrameKind.WITHDRAW, transfer.number, reason)
        self._settled(with_peer, transfer)

    def _take_from_lane(self, with_peer: PeerTransfers, transfer: OutgoingTransfer) -> None:
        del with_peer.leaving[transfer.number]
        with_peer.turns.pop(transfer, None)
        if transfer.in_lane:
            self._transfers.links[with_peer.peer].forget_p2p(self._transfers.key_of(transfer))
            with_peer.in_lane -= transfer.in_lane
            transfer.in_lane = 0
            self._fill_lane(with_peer)

    # -- frames of the other end

    def on_accept(self, with_peer: PeerTransfers, number: int) -> None:
        transfer = with_peer.answered(number)
        if transfer is None:
            self._check_late_answer(with_peer, number)
            return
        transfer.accepted = True
        transfer.progress += 1
        with_peer.leaving[number] = transfer
        self._begin_or_end(with_peer, transfer)
        self._settled(with_peer, transfer)

    def on_decline(self, with_peer: PeerTransfers, number: int, expected: str) -> None:
        transfer = with_peer.answered(number)
        if transfer is None:
            self._check_late_answer(with_peer, number)
            return
        self._settled(with_peer, transfer)
        self._transfers.end(transfer, self._transfers.mismatch(transfer, transfer.what, expected))

    def on_later(self, with_peer: PeerTransfers, number: int) -> None:
        """The answer LATER to everything that was shown up to this number."""
        with_peer.check_known(number)
        if not with_peer.is_ours(number) or number > with_peer.shown.last_left:
            raise RemoteProtocolError(
                f"rank {with_peer.peer} answers LATER for message {number}, which it has not been shown"
            )
        shown = with_peer.shown.transfers
        while shown and next(iter(shown)) <= number:
            _, transfer = shown.popitem(last=False)
            transfer.number = 0
            with_peer.offering[transfer.space].postponed(transfer)
        for space in with_peer.offering:
            self._offer_more(with_peer, space)

    def on_wanted(self, with_peer: PeerTransfers, space: int, tag: int) -> None:
        with_peer.offering[space].wanted(tag)
        self._offer_more(with_peer, space)

    def _check_late_answer(self, with_peer: PeerTransfers, number: int) -> None:
        """Check an answer without a transfer: it may have crossed our own WITHDRAW."""
        with_peer.check_known(number)
        if not with_peer.is_ours(number) or number in with_peer.leaving:
            raise RemoteProtocolError(f"rank {with_peer.peer} answers for message {number}, which waits for no answer")

    def on_receiver_withdrew(self, with_peer: PeerTransfers, number: int, reason: str) -> None:
        """The receiver gave up. If everything has left, that does not matter here."""
        transfer = with_peer.answered(number)
        if transfer is not None:
            self._settled(with_peer, transfer)
        else:
            transfer = with_peer.leaving.get(number)
            if transfer is None:
                return
            self._take_from_lane(with_peer, transfer)
            self._transfers.say(with_peer.peer, FrameKind.WITHDRAW, number, "as it is not wanted")
        self._transfers.end(transfer, self._transfers.aborted(transfer, with_peer.peer, reason))


def offer_of(transfer: OutgoingTransfer) -> Offer:
    return Offer(transfer.number, transfer.space, transfer.tag, transfer.nbytes, transfer.what)
