"""The half of a post office that sends: offers, and what becomes of them."""

from ringwide.errors import RemoteProtocolError
from ringwide.mail.correspondent import Correspondent
from ringwide.mail.desk import Desk
from ringwide.mail.letter import Outgoing
from ringwide.protocol.frame import Kind, pack_data
from ringwide.protocol.p2p import Offer, kept_bytes, segments_of

WINDOW = 8
"""How many segments of one message wait in its lane at a time: others get their turn between them."""
LANE_WINDOW = 64
"""And of all messages together: what is given up is looked for among no more than these."""


class Sending:
    """Every letter to another rank: first held, then offered, then leaving."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def offer(self, letter: Outgoing) -> None:
        mail = self._desk.mail_with[letter.peer]
        mail.unaccepted[letter] = None
        mail.offering[letter.space].add(letter, letter.tag, kept_bytes(letter.what))
        self._offer_more(mail, letter.space)

    def _offer_more(self, mail: Correspondent, space: int) -> None:
        while (due := mail.offering[space].next()) is not None:
            letter, kind = due
            mail.number(letter, kind)
            owner = mail.shown if kind == Kind.HELD else None
            self._desk.tell(mail.peer, offer_of(letter).frame(self._desk.epoch, kind), owner)

    def _settled(self, mail: Correspondent, letter: Outgoing) -> None:
        """It is accepted or over: its place is for others."""
        del mail.unaccepted[letter]
        mail.offering[letter.space].gone(letter)
        self._offer_more(mail, letter.space)

    def send_on(self, letter: Outgoing) -> None:
        """One of its segments has left."""
        mail = self._desk.mail_with[letter.peer]
        mail.in_lane -= 1
        self._begin_or_end(mail, letter)

    def _begin_or_end(self, mail: Correspondent, letter: Outgoing) -> None:
        self._queue_up(mail, letter)
        if letter.has_left(self._desk.segment_bytes):
            del mail.leaving[letter.number]
            self._desk.end(letter, None)
        self._fill_lane(mail)

    def _queue_up(self, mail: Correspondent, letter: Outgoing) -> None:
        """It waits for its turn, if it has more and its lane has not enough of it."""
        if letter.in_lane < WINDOW and letter.next_segment < segments_of(letter.nbytes, self._desk.segment_bytes):
            mail.turns[letter] = None

    def _fill_lane(self, mail: Correspondent) -> None:
        """Give the lane as much as it may have, one segment of each letter in turn."""
        if mail.filling_lane:
            return  # a segment has left while it was given to the lane
        mail.filling_lane = True
        while mail.turns and mail.in_lane < LANE_WINDOW and self._desk.over is None and mail.departed is None:
            letter, _ = mail.turns.popitem(last=False)
            mail.in_lane += 1
            self._send_segment(letter)
            self._queue_up(mail, letter)
        mail.filling_lane = False

    def _send_segment(self, letter: Outgoing) -> None:
        segment = letter.next_segment
        payload = letter.segment(segment, self._desk.segment_bytes)
        letter.next_segment += 1
        letter.in_lane += 1
        header = pack_data(
            bucket=0,
            hop=0,
            epoch=self._desk.epoch,
            segment=segment,
            collective=letter.number,
            fingerprint=0,
            payload_bytes=len(payload),
        )
        self._desk.links[letter.peer].send_mail(header, payload, owner=letter, number=letter.number)

    def take_back(self, letter: Outgoing, reason: str, *, leaving: bool) -> None:
        """It is given up here. From now on nobody reads its payload."""
        mail = self._desk.mail_with[letter.peer]
        if letter.number in mail.leaving:
            self._take_from_lane(mail, letter)
            self._desk.say_withdrawn(mail.peer, letter.number, reason, leaving=leaving)
            return
        if mail.answered(letter.number) is not None:
            self._desk.say(mail.peer, Kind.WITHDRAW, letter.number, reason)  # at once: the other counts its offers
        self._settled(mail, letter)

    def _take_from_lane(self, mail: Correspondent, letter: Outgoing) -> None:
        del mail.leaving[letter.number]
        mail.turns.pop(letter, None)
        if letter.in_lane:
            self._desk.links[mail.peer].forget_mail(letter.number)
            mail.in_lane -= letter.in_lane
            letter.in_lane = 0
            self._fill_lane(mail)

    # -- what the other end says

    def hear_accept(self, mail: Correspondent, number: int) -> None:
        letter = mail.answered(number)
        if letter is None:
            self._check_late_answer(mail, number)
            return
        letter.accepted = True
        letter.progress += 1
        mail.leaving[number] = letter
        self._begin_or_end(mail, letter)
        self._settled(mail, letter)

    def hear_decline(self, mail: Correspondent, number: int, expected: str) -> None:
        letter = mail.answered(number)
        if letter is None:
            self._check_late_answer(mail, number)
            return
        self._settled(mail, letter)
        self._desk.end(letter, self._desk.mismatch(letter, letter.what, expected))

    def hear_later(self, mail: Correspondent, number: int) -> None:
        """Nothing that was shown up to this number is wanted now."""
        mail.check_known(number)
        if not mail.is_ours(number) or number > mail.shown.last_left:
            raise RemoteProtocolError(f"rank {mail.peer} puts off message {number}, which it has not been shown")
        shown = mail.shown.letters
        while shown and next(iter(shown)) <= number:
            _, letter = shown.popitem(last=False)
            letter.number = 0
            mail.offering[letter.space].put_off(letter)
        for space in mail.offering:
            self._offer_more(mail, space)

    def hear_wanted(self, mail: Correspondent, space: int, tag: int) -> None:
        mail.offering[space].wanted(tag)
        self._offer_more(mail, space)

    def _check_late_answer(self, mail: Correspondent, number: int) -> None:
        """It may have crossed our own WITHDRAW."""
        mail.check_known(number)
        if not mail.is_ours(number) or number in mail.leaving:
            raise RemoteProtocolError(f"rank {mail.peer} answers for message {number}, which waits for no answer")

    def hear_unwanted(self, mail: Correspondent, number: int, reason: str) -> None:
        """Who was to receive it does not any more. If all of it has left, nobody minds."""
        letter = mail.answered(number)
        if letter is not None:
            self._settled(mail, letter)
        else:
            letter = mail.leaving.get(number)
            if letter is None:
                return
            self._take_from_lane(mail, letter)
            self._desk.say(mail.peer, Kind.WITHDRAW, number, "as it is not wanted")
        self._desk.end(letter, self._desk.aborted(letter, mail.peer, reason))


def offer_of(letter: Outgoing) -> Offer:
    return Offer(letter.number, letter.space, letter.tag, letter.nbytes, letter.what)
