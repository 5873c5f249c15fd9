"""The half of a endpoint that sends: offers, and what becomes of them."""

from ringwide.errors import RemoteProtocolError
from ringwide.p2p.transfer import OpenTransfers, OutgoingTransfer, PeerTransfers
from ringwide.protocol.frame import FrameKind, pack_data
from ringwide.protocol.p2p import Offer, kept_bytes, segments_of

WINDOW = 8
"""How many segments of one message wait in its lane at a time: others get their turn between them."""
LANE_WINDOW = 64
"""And of all messages together: what is given up is looked for among no more than these."""


class Sender:
    """Every transfer to another rank: first held, then offered, then leaving."""

    def __init__(self, desk: OpenTransfers) -> None:
        self._desk = desk

    def offer(self, transfer: OutgoingTransfer) -> None:
        p2p = self._desk.p2p_with[transfer.peer]
        p2p.unaccepted[transfer] = None
        p2p.offering[transfer.space].add(transfer, transfer.tag, kept_bytes(transfer.what))
        self._offer_more(p2p, transfer.space)

    def _offer_more(self, p2p: PeerTransfers, space: int) -> None:
        while (due := p2p.offering[space].next()) is not None:
            transfer, kind = due
            p2p.number(transfer, kind)
            owner = p2p.shown if kind == FrameKind.HELD else None
            self._desk.tell(p2p.peer, offer_of(transfer).frame(self._desk.epoch, kind), owner)

    def _settled(self, p2p: PeerTransfers, transfer: OutgoingTransfer) -> None:
        """It is accepted or over: its place is for others."""
        del p2p.unaccepted[transfer]
        p2p.offering[transfer.space].gone(transfer)
        self._offer_more(p2p, transfer.space)

    def send_on(self, transfer: OutgoingTransfer) -> None:
        """One of its segments has left."""
        p2p = self._desk.p2p_with[transfer.peer]
        p2p.in_lane -= 1
        self._begin_or_end(p2p, transfer)

    def _begin_or_end(self, p2p: PeerTransfers, transfer: OutgoingTransfer) -> None:
        self._queue_up(p2p, transfer)
        if transfer.has_left(self._desk.segment_bytes):
            del p2p.leaving[transfer.number]
            self._desk.end(transfer, None)
        self._fill_lane(p2p)

    def _queue_up(self, p2p: PeerTransfers, transfer: OutgoingTransfer) -> None:
        """It waits for its turn, if it has more and its lane has not enough of it."""
        if transfer.in_lane < WINDOW and transfer.next_segment < segments_of(transfer.nbytes, self._desk.segment_bytes):
            p2p.turns[transfer] = None

    def _fill_lane(self, p2p: PeerTransfers) -> None:
        """Give the lane as much as it may have, one segment of each transfer in turn."""
        if p2p.filling_lane:
            return  # a segment has left while it was given to the lane
        p2p.filling_lane = True
        while p2p.turns and p2p.in_lane < LANE_WINDOW and self._desk.over is None and p2p.departed is None:
            transfer, _ = p2p.turns.popitem(last=False)
            p2p.in_lane += 1
            self._send_segment(transfer)
            self._queue_up(p2p, transfer)
        p2p.filling_lane = False

    def _send_segment(self, transfer: OutgoingTransfer) -> None:
        segment = transfer.next_segment
        payload = transfer.segment(segment, self._desk.segment_bytes)
        transfer.next_segment += 1
        transfer.in_lane += 1
        header = pack_data(
            bucket=0,
            hop=0,
            epoch=self._desk.epoch,
            segment=segment,
            collective=transfer.number,
            fingerprint=0,
            payload_bytes=len(payload),
        )
        self._desk.links[transfer.peer].send_p2p(header, payload, owner=transfer, number=transfer.number)

    def take_back(self, transfer: OutgoingTransfer, reason: str, *, leaving: bool) -> None:
        """It is given up here. From now on nobody reads its payload."""
        p2p = self._desk.p2p_with[transfer.peer]
        if transfer.number in p2p.leaving:
            self._take_from_lane(p2p, transfer)
            self._desk.say_withdrawn(p2p.peer, transfer.number, reason, leaving=leaving)
            return
        if p2p.answered(transfer.number) is not None:
            self._desk.say(
                p2p.peer, FrameKind.WITHDRAW, transfer.number, reason
            )  # at once: the other counts its offers
        self._settled(p2p, transfer)

    def _take_from_lane(self, p2p: PeerTransfers, transfer: OutgoingTransfer) -> None:
        del p2p.leaving[transfer.number]
        p2p.turns.pop(transfer, None)
        if transfer.in_lane:
            self._desk.links[p2p.peer].forget_p2p(transfer.number)
            p2p.in_lane -= transfer.in_lane
            transfer.in_lane = 0
            self._fill_lane(p2p)

    # -- what the other end says

    def hear_accept(self, p2p: PeerTransfers, number: int) -> None:
        transfer = p2p.answered(number)
        if transfer is None:
            self._check_late_answer(p2p, number)
            return
        transfer.accepted = True
        transfer.progress += 1
        p2p.leaving[number] = transfer
        self._begin_or_end(p2p, transfer)
        self._settled(p2p, transfer)

    def hear_decline(self, p2p: PeerTransfers, number: int, expected: str) -> None:
        transfer = p2p.answered(number)
        if transfer is None:
            self._check_late_answer(p2p, number)
            return
        self._settled(p2p, transfer)
        self._desk.end(transfer, self._desk.mismatch(transfer, transfer.what, expected))

    def hear_later(self, p2p: PeerTransfers, number: int) -> None:
        """Nothing that was shown up to this number is wanted now."""
        p2p.check_known(number)
        if not p2p.is_ours(number) or number > p2p.shown.last_left:
            raise RemoteProtocolError(f"rank {p2p.peer} puts off message {number}, which it has not been shown")
        shown = p2p.shown.transfers
        while shown and next(iter(shown)) <= number:
            _, transfer = shown.popitem(last=False)
            transfer.number = 0
            p2p.offering[transfer.space].postponed(transfer)
        for space in p2p.offering:
            self._offer_more(p2p, space)

    def hear_wanted(self, p2p: PeerTransfers, space: int, tag: int) -> None:
        p2p.offering[space].wanted(tag)
        self._offer_more(p2p, space)

    def _check_late_answer(self, p2p: PeerTransfers, number: int) -> None:
        """It may have crossed our own WITHDRAW."""
        p2p.check_known(number)
        if not p2p.is_ours(number) or number in p2p.leaving:
            raise RemoteProtocolError(f"rank {p2p.peer} answers for message {number}, which waits for no answer")

    def hear_unwanted(self, p2p: PeerTransfers, number: int, reason: str) -> None:
        """Who was to receive it does not any more. If all of it has left, nobody minds."""
        transfer = p2p.answered(number)
        if transfer is not None:
            self._settled(p2p, transfer)
        else:
            transfer = p2p.leaving.get(number)
            if transfer is None:
                return
            self._take_from_lane(p2p, transfer)
            self._desk.say(p2p.peer, FrameKind.WITHDRAW, number, "as it is not wanted")
        self._desk.end(transfer, self._desk.aborted(transfer, p2p.peer, reason))


def offer_of(transfer: OutgoingTransfer) -> Offer:
    return Offer(transfer.number, transfer.space, transfer.tag, transfer.nbytes, transfer.what)
