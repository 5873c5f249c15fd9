"""The half of a post office that receives: offers meet receives, and what was accepted arrives.

What a rank sends to itself is matched here as well, and copied when it is.
"""

from ringwide.errors import RemoteProtocolError
from ringwide.mail.correspondent import Correspondent
from ringwide.mail.desk import Desk
from ringwide.mail.letter import Incoming, Outgoing
from ringwide.mail.sending import offer_of
from ringwide.protocol.frame import Header, Kind, news
from ringwide.protocol.p2p import Matching, Offer, Space, dtype_in, wanted


class PutOff:
    """Tells one peer that what it has shown is not wanted now: all up to the last, in one frame at a time."""

    def __init__(self, desk: Desk, peer: int) -> None:
        self._desk, self._peer = desk, peer
        self._last = self._told = 0
        self._in_lane = False

    def add(self, number: int) -> None:
        self._last = number
        self._tell()

    def _tell(self) -> None:
        if not self._in_lane and self._told < self._last:
            self._in_lane, self._told = True, self._last
            frame = news(Kind.LATER, "", collective=self._last, epoch=self._desk.epoch)
            self._desk.tell(self._peer, frame, owner=self)

    def sent(self) -> None:
        self._in_lane = False
        self._tell()


class Receiving:
    """Every letter that is expected, and every offer that nobody has wanted yet."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._matching: Matching[Incoming] = Matching()
        self._showing: dict[int, set[int]] = {space: set() for space in Space}  # who has ever shown something
        self._put_off = {peer: PutOff(desk, peer) for peer in desk.mail_with}
        self._own: dict[int, Outgoing] = {}  # to ourselves
        self._own_count = 0

    def post(self, letter: Incoming) -> None:
        found = self._matching.posted(letter, letter.source, letter.space, letter.tag)
        if found is not None:
            self._match(letter, *found)
        else:
            self._ask_for(letter)

    def _ask_for(self, letter: Incoming) -> None:
        """Perhaps somebody has it, and holds it."""
        for peer in self._showing[letter.space]:
            if letter.source in (None, peer):
                self._desk.tell(peer, wanted(letter.space, letter.tag, self._desk.epoch))

    def offer_own(self, letter: Outgoing) -> None:
        self._own_count += 1
        letter.number = self._own_count
        self._own[letter.number] = letter
        offer = offer_of(letter)
        receive = self._matching.offered(self._desk.rank, offer)
        if receive is not None:
            self._match(receive, self._desk.rank, offer)

    def take_back_own(self, letter: Outgoing) -> None:
        del self._own[letter.number]
        self._matching.withdrawn(self._desk.rank, letter.number)

    def stop(self, letter: Incoming, reason: str, *, leaving: bool) -> None:
        """It is given up here. From now on nobody writes to its memory."""
        if self._matching.cancelled(letter, letter.source, letter.space, letter.tag):
            return
        assert letter.peer is not None, "what does not wait for an offer has had one"
        mail = self._desk.mail_with[letter.peer]
        del mail.arriving[letter.number]
        mail.unwanted[letter.number] = letter.nbytes - letter.landed
        if letter.landing:
            self._desk.links[mail.peer].forget_mail(letter.number)
        self._desk.say_withdrawn(mail.peer, letter.number, reason, leaving=leaving)

    def forget_offers_of(self, peer: int) -> None:
        self._matching.left(peer)

    # -- an offer meets a receive

    def _match(self, letter: Incoming, peer: int, offer: Offer) -> None:
        letter.peer, letter.number = peer, offer.number
        if (dtype_in(offer.what), offer.nbytes) != (letter.dtype, letter.nbytes):
            self._decline(letter, peer, offer)
            return
        try:
            letter.memory = letter.take_memory()
        except MemoryError as error:
            self._refuse(letter, peer, f"it has no memory: {error}")
            self._desk.end(letter, error)
            return
        if peer == self._desk.rank:
            self._deliver_own(letter)
        else:
            self._desk.mail_with[peer].arriving[offer.number] = letter
            self._desk.say(peer, Kind.ACCEPT, offer.number)
            self._end_if_complete(letter)

    def _decline(self, letter: Incoming, peer: int, offer: Offer) -> None:
        if peer == self._desk.rank:
            sent = self._own.pop(offer.number)
            self._desk.end(sent, self._desk.mismatch(sent, offer.what, letter.what))
        else:
            self._desk.say(peer, Kind.DECLINE, offer.number, letter.what)
        self._desk.end(letter, self._desk.mismatch(letter, offer.what, letter.what))

    def _refuse(self, letter: Incoming, peer: int, reason: str) -> None:
        """A receive cannot take what it was given."""
        if peer == self._desk.rank:
            sent = self._own.pop(letter.number)
            self._desk.end(sent, self._desk.aborted(sent, peer, reason))
        else:
            self._desk.say(peer, Kind.WITHDRAW, letter.number, reason)

    def _deliver_own(self, letter: Incoming) -> None:
        sent = self._own.pop(letter.number)
        letter.land(sent.payload)
        self._desk.end(sent, None)
        self._desk.end(letter, None)

    def _end_if_complete(self, letter: Incoming) -> None:
        if letter.complete and letter.peer is not None:
            del self._desk.mail_with[letter.peer].arriving[letter.number]
            self._desk.end(letter, None)

    # -- what the other end says

    def hear_offer(self, mail: Correspondent, offer: Offer) -> None:
        mail.expect_offer(offer.number)
        limit = self._desk.kept_limit_bytes
        if self._matching.kept_of(mail.peer, offer.space) >= limit:
            raise RemoteProtocolError(f"rank {mail.peer} has offered more than the {limit} bytes that are kept here")
        letter = self._matching.offered(mail.peer, offer)
        if letter is not None:
            self._match(letter, mail.peer, offer)

    def hear_held(self, mail: Correspondent, offer: Offer) -> None:
        """Now or later: it is not kept here."""
        mail.expect_offer(offer.number)
        self._showing[offer.space].add(mail.peer)
        letter = self._matching.offered(mail.peer, offer, keep=False)
        if letter is not None:
            self._match(letter, mail.peer, offer)
        else:
            self._put_off[mail.peer].add(offer.number)

    def place_for(self, mail: Correspondent, header: Header) -> memoryview | None:
        """Where this segment lands. None: it was given up, or was never accepted."""
        letter = mail.arriving.get(header.collective)
        if letter is None:
            return None
        letter.check(header, self._desk.segment_bytes)
        letter.landing = True
        return letter.place(header.payload_bytes)

    def hear_data(self, mail: Correspondent, header: Header, payload: memoryview) -> None:
        letter = mail.arriving.get(header.collective)
        if letter is None:
            mail.drop(header.collective, len(payload))
            return
        letter.check(header, self._desk.segment_bytes)
        letter.land(payload)
        self._end_if_complete(letter)

    def hear_withdrawn(self, mail: Correspondent, number: int, reason: str) -> None:
        """An offer that nobody had accepted just disappears."""
        letter = mail.arriving.pop(number, None)
        if letter is not None:
            self._desk.end(letter, self._desk.aborted(letter, mail.peer, reason))
        else:
            self._matching.withdrawn(mail.peer, number)
            mail.unwanted.pop(number, None)
