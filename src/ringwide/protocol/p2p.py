"""Messages between two ranks: what is said of each on a p2p lane, and which receive gets which message.

    sender    OFFER       tag, size, dtype and shape
    receiver  ACCEPT      a receive wants it, and has memory for it; or DECLINE: that receive is for something else
    sender    DATA        its segments, in order

Rules:
- Of two ranks the lower numbers its offers 2, 4, 6..., the higher 1, 3, 5...: a number says who sends it.
- An offer goes to the receive that was posted first, of those for its tag, and for its sender or for anybody. A receive
  gets the offer that came first. So messages of one rank with one tag are received in the order of their sending.
- Either side may WITHDRAW at any time. A receiver that does so after its ACCEPT drops what still comes; the sender says
  WITHDRAW too, unless everything has left.
- A rank keeps the offers of another that nobody wants yet, as long as they take less than `KEPT_LIMIT_BYTES`. What goes
  beyond that waits at home (`offering.py`).
- The first of each tag that waits at home is shown: HELD. The answer comes at once: ACCEPT or DECLINE, if a receive
  waits for it, else LATER. A receive for which nothing is there says WANTED to whoever has shown something before, and
  that rank shows the first with this tag again, if it has one. So the later of the two, send or receive, finds the
  other, and neither end remembers what is only the other's.
- LATER puts off all that was shown up to its number and not accepted: there is one on its way at most, however much is
  shown. What has not left yet cannot be put off. So no peer can fill our queues with answers by not reading them.
- Exchanges have tags of their own, which no receive of a user can meet, and room of their own.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from enum import IntEnum
from itertools import count
from struct import Struct
from typing import Generic, NamedTuple, TypeVar

from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import NEWS_LIMIT_BYTES, FrameKind, Header, framed

P2P_LANE = 254
"""Its number among the connections of two ranks."""
KEPT_LIMIT_BYTES = 16 * 1024 * 1024
"""A rank keeps offers of another, in one space, until they take so much, by `kept_bytes`: some ten thousand."""
OFFER_BYTES = 1536
"""What an offer takes that is kept, beside its text: Python's objects are large."""
_TERMS = Struct("<BqQ")
TERMS_BYTES = _TERMS.size
_WANTED = Struct("<Bq")


class Space(IntEnum):
    """To whom a tag means something."""

    MESSAGES = 0
    EXCHANGES = 1


_SPACES = frozenset(int(space) for space in Space)


class Offer(NamedTuple):
    """What a rank would send. `what` is its dtype and shape, such as float32[2, 3]."""

    number: int
    space: int
    tag: int
    nbytes: int
    what: str

    def frame(self, epoch: int = 0, kind: FrameKind = FrameKind.OFFER) -> bytes:
        terms = _TERMS.pack(self.space, self.tag, self.nbytes) + self.what.encode()[: NEWS_LIMIT_BYTES - TERMS_BYTES]
        return framed(kind, terms, collective=self.number, epoch=epoch)


def kept_bytes(what: str) -> int:
    """What an offer takes that is kept. A character may take four bytes."""
    return OFFER_BYTES + 4 * len(what)


def dtype_in(what: str) -> str:
    return what.partition("[")[0]


def read_offer(header: Header, payload: bytes | memoryview) -> Offer:
    """Turn an untrusted payload into an offer, or say what is wrong with it."""
    if len(payload) < TERMS_BYTES:
        raise RemoteProtocolError(f"an offer of {len(payload)} bytes, where {TERMS_BYTES} are the least")
    space, tag, nbytes = _TERMS.unpack_from(payload)
    _check_space(space)
    return Offer(header.collective, space, tag, nbytes, bytes(payload[TERMS_BYTES:]).decode(errors="replace"))


def wanted(space: int, tag: int, epoch: int = 0) -> bytes:
    """The frame that asks for the first message with this tag."""
    return framed(FrameKind.WANTED, _WANTED.pack(space, tag), epoch=epoch)


def read_wanted(payload: bytes | memoryview) -> tuple[int, int]:
    """Turn an untrusted payload into space and tag, or say what is wrong with it."""
    if len(payload) != _WANTED.size:
        raise RemoteProtocolError(f"a wish in {len(payload)} bytes, where it has {_WANTED.size}")
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
    """Offers that nobody has wanted yet, and receives for which nothing has been offered yet.

    Nothing is looked for among many: of what fits, the first is at hand. `OrderedDict`: a plain dict would pass over
    all that has been removed from its beginning.
    """

    def __init__(self) -> None:
        self._offers: dict[Key, dict[int, OrderedDict[int, tuple[int, Offer]]]] = {}  # by sender and number, in order
        self._places: dict[int, dict[int, Key]] = {}  # of each sender's offers
        self._receives: dict[tuple[int, int, int | None], OrderedDict[Receive, int]] = {}  # by source, in order
        self._kept: dict[Key, int] = {}  # by sender and space, in bytes
        self._order = count()

    def offered(self, peer: int, offer: Offer, *, keep: bool = True) -> Receive | None:
        """The receive that gets this. None: it waits for one, if we `keep` it."""
        receive = self._first_receive(peer, offer.space, offer.tag)
        if receive is None and keep:
            key = offer.space, offer.tag
            offers = self._offers.setdefault(key, {}).setdefault(peer, OrderedDict())
            offers[offer.number] = next(self._order), offer
            self._places.setdefault(peer, {})[offer.number] = key
            self._kept[peer, offer.space] = self.kept_of(peer, offer.space) + kept_bytes(offer.what)
        return receive

    def _first_receive(self, peer: int, space: int, tag: int) -> Receive | None:
        """The one that was posted first, of those for this peer and those for anybody."""
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
        """What this receive gets, and from whom. None: it waits for it."""
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
        """The offer waits no more. Did it?"""
        key = self._places.get(peer, {}).pop(number, None)
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
        """The receive waits no more. Did it?"""
        receives = self._receives.get((space, tag, source))
        if receives is None or receive not in receives:
            return False
        del receives[receive]
        if not receives:
            del self._receives[space, tag, source]
        return True

    def left(self, peer: int) -> None:
        """What this rank has offered will never come."""
        for number in list(self._places.get(peer, {})):
            self.withdrawn(peer, number)

    def kept_of(self, peer: int, space: int) -> int:
        """What the offers of this rank take that wait here."""
        return self._kept.get((peer, space), 0)


def _order_of(entry: tuple[int, object, object]) -> int:
    return entry[0]


# Messages of one rank to another that nobody has accepted yet: which the other end keeps, and which wait at home.
#
# Rules:
# - What there is room for is offered, in the order of sending. The rest is held at home.
# - Of what is held, the first of each tag is shown: once when it becomes the first, and again whenever its tag is
#   wanted. Who sees it accepts it at once or puts it off, and keeps nothing of it.
# - What is shown stays in its place, so nothing of its tag is offered before it is known what becomes of it.

Message = TypeVar("Message", bound=Hashable)


class Offering(Generic[Message]):
    """Ask `next` after every change, until there is nothing more to say."""

    def __init__(self, room_bytes: int) -> None:
        self._room = room_bytes  # at the other end; what is offered last may take more than there is
        self._offered: dict[Message, int] = {}  # what each takes there
        self._held: OrderedDict[Message, tuple[int, int]] = OrderedDict()  # tag and what it would take
        self._of_tag: dict[int, OrderedDict[Message, None]] = {}
        self._shown: dict[int, Message] = {}  # by tag, until it is answered
        self._wanted_again: set[int] = set()  # tags of which something is shown, that were wanted meanwhile
        self._due: deque[int] = deque()  # tags of which the first is to be shown

    def add(self, message: Message, tag: int, nbytes: int) -> None:
        """`nbytes` is what its offer takes at the other end."""
        self._held[message] = tag, nbytes
        of_tag = self._of_tag.setdefault(tag, OrderedDict())
        of_tag[message] = None
        if len(of_tag) == 1:
            self._due.append(tag)

    def next(self) -> tuple[Message, FrameKind] | None:
        """What is to be said next: OFFER or HELD."""
        if self._held and self._room > 0:
            message, (tag, nbytes) = next(iter(self._held.items()))
            if self._shown.get(tag) != message:
                self._offered[message] = nbytes
                self._room -= nbytes
                self._let_go(message)
                return message, FrameKind.OFFER
        while self._due:
            tag = self._due.popleft()
            if tag in self._of_tag and tag not in self._shown:
                self._shown[tag] = next(iter(self._of_tag[tag]))
                return self._shown[tag], FrameKind.HELD
        return None

    def _let_go(self, message: Message) -> None:
        """It is not held any more. The next of its tag has not been shown yet."""
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
        """It was accepted, declined or given up."""
        if message in self._held:
            self._let_go(message)
        else:
            self._room += self._offered.pop(message)

    def put_off(self, message: Message) -> None:
        """It was shown, and nobody wants it now."""
        self._no_longer_shown(self._held[message][0])

    def wanted(self, tag: int) -> None:
        """A receive waits for something with this tag. What is shown just now may have come too early for it."""
        if tag in self._shown:
            self._wanted_again.add(tag)
        elif tag in self._of_tag:
            self._due.append(tag)
