"""The half of a post office that sends: offers, and what becomes of them."""

from ringwide.errors import RemoteProtocolError
from ringwide.mail.correspondent import Correspondent
from ringwide.mail.desk import Desk
from ringwide.mail.letter import Outgoing
from ringwide.protocol.frame import Kind, pack_data
from ringwide.protocol.mail import Offer, kept_bytes, segments_of

WINDOW = 8
"""How many segments of one message wait in its lane at a time: others get their turn between them."""


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
        """Give the lane as much as it may have; called again whenever a segment has left."""
        if letter.sending:
            return
        letter.sending = True
        segments = segments_of(letter.nbytes, self._desk.segment_bytes)
        while letter.next_segment < segments and letter.in_lane < WINDOW and letter in self._desk.open:
            self._send_segment(letter)
        letter.sending = False
        if letter.has_left(self._desk.segment_bytes):
            self._desk.mail_with[letter.peer].leaving.pop(letter.number, None)
            self._desk.end(letter, None)

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
        if mail.leaving.pop(letter.number, None) is not None:
            self._desk.links[mail.peer].forget_mail(letter.number)
            self._desk.say_withdrawn(mail.peer, letter.number, reason, leaving=leaving)
            return
        if mail.answered(letter.number) is not None:
            self._desk.say(mail.peer, Kind.WITHDRAW, letter.number, reason)  # at once: the other counts its offers
        self._settled(mail, letter)

    # -- what the other end says

    def hear_accept(self, mail: Correspondent, number: int) -> None:
        letter = mail.answered(number)
        if letter is None:
            self._check_late_answer(mail, number)
            return
        letter.accepted = True
        letter.progress += 1
        mail.leaving[number] = letter
        self.send_on(letter)
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
            letter = mail.leaving.pop(number, None)
            if letter is None:
                return
            self._desk.links[mail.peer].forget_mail(number)
            self._desk.say(mail.peer, Kind.WITHDRAW, number, "as it is not wanted")
        self._desk.end(letter, self._desk.aborted(letter, mail.peer, reason))


def offer_of(letter: Outgoing) -> Offer:
    return Offer(letter.number, letter.space, letter.tag, letter.nbytes, letter.what)
