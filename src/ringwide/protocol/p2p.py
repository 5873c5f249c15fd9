"""Point-to-point messages: the frames on a p2p lane, and the matching of messages with receives.

    sender    OFFER       tag, size, dtype and shape
    receiver  ACCEPT      a receive matches and has memory for it; or DECLINE: that receive has another dtype or size
    sender    DATA        its segments, in order

Rules:
- Of two ranks, the lower numbers its offers 2, 4, 6..., the higher 1, 3, 5...: a number tells its sender.
- An offer goes to the receive that was posted first, of those for its tag and for its sender or any sender. A receive
  gets the offer that came first. So messages of one rank with one tag are received in the order of their sending.
- Either side may WITHDRAW at any time. A receiver that does so after its ACCEPT drops what still comes; the sender
  sends WITHDRAW too, unless everything has left.
- A receiver keeps offers that no receive matches yet, as long as they take less than `KEPT_LIMIT_BYTES`. Messages
  beyond that are held by their sender (`Offering`).
- The sender shows the first held message of each tag: HELD. The answer comes at once: ACCEPT or DECLINE if a receive
  waits for it, else LATER. A receive without a match sends WANTED to every rank that has shown something before, and
  such a rank shows its first message with this tag again, if it has one. So the later of the two, send or receive,
  finds the other, and neither end stores what belongs to the other.
- LATER answers everything shown up to its number and not accepted, so at most one is on its way, however much is shown.
  A HELD frame that has not left yet cannot be answered. So no peer can fill our queues with answers by not reading
  them.
- Exchanges have tags of their own, which no receive of a user matches, and a limit of their own.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from enum import IntEnum
from itertools import count
from struct import Struct
from typing import Generic, NamedTuple, TypeVar

from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import NEWS_LIMIT_BYTES, FrameKind, Header, framed, words_in

P2P_LANE = 254
"""Number of the p2p lane among the connections of two ranks."""
KEPT_LIMIT_BYTES = 16 * 1024 * 1024
"""Most that a rank keeps of another's offers in one space, measured by `kept_bytes`: some ten thousand offers."""
OFFER_BYTES = 1536
"""Memory of a kept offer beside its text: Python's objects are large."""
_TERMS = Struct("<BqQ")
TERMS_BYTES = _TERMS.size
_WANTED = Struct("<Bq")


class Space(IntEnum):
    """Separate sets of tags: those of users' messages, and those of exchanges."""

    MESSAGES = 0
    EXCHANGES = 1


_SPACES = frozenset(int(space) for space in Space)


class Offer(NamedTuple):
    """Announcement of a message. `what` is its dtype and shape, such as float32[2, 3]."""

    number: int
    space: int
    tag: int
    nbytes: int
    what: str

    def frame(self, epoch: int = 0, kind: FrameKind = FrameKind.OFFER) -> bytes:
        terms = _TERMS.pack(self.space, self.tag, self.nbytes) + self.what.encode()[: NEWS_LIMIT_BYTES - TERMS_BYTES]
        return framed(kind, terms, collective=self.number, epoch=epoch)


def kept_bytes(what: str) -> int:
    """Memory of a kept offer. A character may take four bytes."""
    return OFFER_BYTES + 4 * len(what)


def dtype_in(what: str) -> str:
    return what.partition("[")[0]


def read_offer(header: Header, payload: bytes | memoryview) -> Offer:
    """An offer from an untrusted payload, or an error that says what is wrong with it."""
    if len(payload) < TERMS_BYTES:
        raise RemoteProtocolError(f"an offer of {len(payload)} bytes, it must have at least {TERMS_BYTES}")
    space, tag, nbytes = _TERMS.unpack_from(payload)
    _check_space(space)
    return Offer(header.collective, space, tag, nbytes, words_in(payload[TERMS_BYTES:]))


def wanted(space: int, tag: int, epoch: int = 0) -> bytes:
    """The frame that asks for the first message with this tag."""
    return framed(FrameKind.WANTED, _WANTED.pack(space, tag), epoch=epoch)


def read_wanted(payload: bytes | memoryview) -> tuple[int, int]:
    """Space and tag from an untrusted payload, or an error that says what is wrong with it."""
    if len(payload) != _WANTED.size:
        raise RemoteProtocolError(f"a WANTED frame of {len(payload)} bytes, it must have {_WANTED.size}")
    space, tag = _WANTED.unpack(payload)
    _check_space(space)
    return space, tag


def _check_space(space: int) -> None:
    if space not in _SPACES:
        raise RemoteProtocolError(f"a message in the unknown space {space}")


def numbers_from(sender: int, receiver: int) -> Iterator[int]:
    """The numbers of one rank's messages to another."""
    return count(2 if sender < receiver else 1, 2)


def segments_of(nbytes: int, segment_bytes: int) -> int:
    return -(-nbytes // segment_bytes)


Receive = TypeVar("Receive", bound=Hashable)


Key = tuple[int, int]
"""Space and tag, or rank and space."""


class Matching(Generic[Receive]):
    """Offers without a receive, and receives without an offer.

    Nothing is searched: the first match is always at hand. `OrderedDict`, because a plain dict takes longer and longer
    to find its first entry when entries are removed from its beginning.
    """

    def __init__(self) -> None:
        self._offers: dict[Key, dict[int, OrderedDict[int, tuple[int, Offer]]]] = {}  # in order, by sender and number
        self._keys: dict[int, dict[int, Key]] = {}  # of offers, by sender and number
        self._receives: dict[tuple[int, int, int | None], OrderedDict[Receive, int]] = {}  # in order, by source
        self._kept: dict[Key, int] = {}  # bytes, by sender and space
        self._order = count()

    def offered(self, peer: int, offer: Offer, *, keep: bool = True) -> Receive | None:
        """The receive that gets this offer. None: there is none yet, and the offer waits here if `keep`."""
        receive = self._first_receive(peer, offer.space, offer.tag)
        if receive is None and keep:
            key = offer.space, offer.tag
            offers = self._offers.setdefault(key, {}).setdefault(peer, OrderedDict())
            offers[offer.number] = next(self._order), offer
            self._keys.setdefault(peer, {})[offer.number] = key
            self._kept[peer, offer.space] = self.kept_of(peer, offer.space) + kept_bytes(offer.what)
        return receive

    def _first_receive(self, peer: int, space: int, tag: int) -> Receive | None:
        """The receive that was posted first, of those for this peer and those for any peer."""
        found: list[tuple[int, int | None, Receive]] = []
        for source in (peer, None):
            receives = self._receives.get((space, tag, source))
            if receives:
                receive, order = next(iter(receives.items()))
                found.append((order, source, receive))
        if not found:
            return None
        _, source, receive = min(found, key=_order_of)
        self.cancelled(receive, source, space, tag)
        return receive

    def posted(self, receive: Receive, source: int | None, space: int, tag: int) -> tuple[int, Offer] | None:
        """Sender and offer that this receive gets. None: there is none yet, and the receive waits here."""
        by_sender = self._offers.get((space, tag), {})
        senders = by_sender if source is None else [source] if source in by_sender else []
        firsts = [(*next(iter(by_sender[peer].values())), peer) for peer in senders]
        if not firsts:
            self._receives.setdefault((space, tag, source), OrderedDict())[receive] = next(self._order)
            return None
        _, offer, peer = min(firsts, key=_order_of)
        self.withdrawn(peer, offer.number)
        return peer, offer

    def withdrawn(self, peer: int, number: int) -> bool:
        """Remove an offer. True: it was waiting here."""
        key = self._keys.get(peer, {}).pop(number, None)
        if key is None:
            return False
        by_sender = self._offers[key]
        _, offer = by_sender[peer].pop(number)
        self._kept[peer, offer.space] -= kept_bytes(offer.what)
        if not by_sender[peer]:
            del by_sender[peer]
        if not by_sender:
            del self._offers[key]
        return True

    def cancelled(self, receive: Receive, source: int | None, space: int, tag: int) -> bool:
        """Remove a receive. True: it was waiting here."""
        receives = self._receives.get((space, tag, source))
        if receives is None or receive not in receives:
            return False
        del receives[receive]
        if not receives:
            del self._receives[space, tag, source]
        return True

    def left(self, peer: int) -> None:
        """Remove all offers of a rank that has left."""
        for number in list(self._keys.get(peer, {})):
            self.withdrawn(peer, number)

    def kept_of(self, peer: int, space: int) -> int:
        """Memory of the offers of this rank that wait here."""
        return self._kept.get((peer, space), 0)


def _order_of(entry: tuple[int, object, object]) -> int:
    return entry[0]


Message = TypeVar("Message", bound=Hashable)


class Offering(Generic[Message]):
    """Messages to one rank that it has not accepted yet. Call `next` after every change, until it returns None.

    Rules:
    - Messages are offered in the order of sending, as long as there is room at the receiver. The rest is held here.
    - The first held message of each tag is shown: once when it becomes the first, and again whenever its tag is wanted.
      The receiver accepts it at once or answers LATER, and keeps nothing of it.
    - A shown message keeps its place, so no other message of its tag is offered before it is answered.
    """

    def __init__(self, room_bytes: int) -> None:
        self._room = room_bytes  # at the receiver; the last offer may take more than there is
        self._offered: dict[Message, int] = {}  # memory that each takes there
        self._held: OrderedDict[Message, tuple[int, int]] = OrderedDict()  # tag and memory
        self._of_tag: dict[int, OrderedDict[Message, None]] = {}
        self._shown: dict[int, Message] = {}  # by tag, until answered
        self._wanted_again: set[int] = set()  # tags that were wanted again while a message of theirs was shown
        self._due: deque[int] = deque()  # tags whose first message is to be shown

    def add(self, message: Message, tag: int, nbytes: int) -> None:
        """`nbytes` is the memory that its offer takes at the receiver."""
        self._held[message] = tag, nbytes
        of_tag = self._of_tag.setdefault(tag, OrderedDict())
        of_tag[message] = None
        if len(of_tag) == 1:
            self._due.append(tag)

    def next(self) -> tuple[Message, FrameKind] | None:
        """The next message to announce, and the kind of frame: OFFER or HELD."""
        if self._held and self._room > 0:
            message, (tag, nbytes) = next(iter(self._held.items()))
            if self._shown.get(tag) != message:
                self._offered[message] = nbytes
                self._room -= nbytes
                self._remove_held(message)
                return message, FrameKind.OFFER
        while self._due:
            tag = self._due.popleft()
            if tag in self._of_tag and tag not in self._shown:
                self._shown[tag] = next(iter(self._of_tag[tag]))
                return self._shown[tag], FrameKind.HELD
        return None

    def _remove_held(self, message: Message) -> None:
        """Stop holding a message. If it was the first of its tag, the next one is to be shown."""
        tag, _ = self._held.pop(message)
        of_tag = self._of_tag[tag]
        was_first = next(iter(of_tag)) == message
        del of_tag[message]
        if not of_tag:
            del self._of_tag[tag]
        elif was_first:
            self._due.append(tag)
        if self._shown.get(tag) == message:
            self._no_longer_shown(tag)

    def _no_longer_shown(self, tag: int) -> None:
        del self._shown[tag]
        if tag in self._wanted_again:
            self._wanted_again.remove(tag)
            self._due.append(tag)

    def gone(self, message: Message) -> None:
        """The message was accepted, declined or given up."""
        if message in self._held:
            self._remove_held(message)
        else:
            self._room += self._offered.pop(message)

    def postponed(self, message: Message) -> None:
        """The message was shown, and the answer was LATER."""
        self._no_longer_shown(self._held[message][0])

    def wanted(self, tag: int) -> None:
        """A receive waits for a message with this tag. One that is shown just now may arrive too early for it."""
        if tag in self._shown:
            self._wanted_again.add(tag)
        elif tag in self._of_tag:
            self._due.append(tag)
