"""What both halves of a post office work with: every open letter, how one ends, and what the other end is told."""

from collections.abc import Callable, Mapping
from typing import Protocol

from ringwide.collective.deadlines import Clock
from ringwide.errors import CollectiveAborted, MessageMismatch, RingwideError
from ringwide.mail.correspondent import Correspondent
from ringwide.mail.letter import Incoming, Letter, Outgoing
from ringwide.protocol.frame import HEADER_BYTES, Kind, news

AnyLetter = Outgoing | Incoming
LEAVING_SECONDS = 0.5
"""How long a rank may take to leave before the other end hears of a message that it has given up."""


class Owner(Protocol):
    """Whoever must know when a payload has left."""

    def sent(self) -> None: ...


class LinkLike(Protocol):
    """What mail needs of a link."""

    def send_mail(self, header: bytes, payload: memoryview, *, owner: Owner, number: int) -> None: ...

    def tell_mail(self, frame: bytes) -> None: ...

    def forget_mail(self, number: int) -> None: ...


class Desk:
    """The letters of one rank."""

    def __init__(
        self,
        *,
        rank: int,
        links: Mapping[int, LinkLike],
        clock: Clock,
        segment_bytes: int,
        on_open: Callable[[], None],
        epoch: int,
        kept_limit_bytes: int,
    ) -> None:
        self.rank, self.links, self.segment_bytes, self.epoch = rank, links, segment_bytes, epoch
        self._clock, self._on_open = clock, on_open
        self.kept_limit_bytes = kept_limit_bytes
        self.mail_with = {peer: Correspondent(rank, peer, kept_limit_bytes) for peer in links}
        self.open: dict[AnyLetter, None] = {}  # in the order in which they were opened
        self.over: RingwideError | None = None

    def enter(self, letter: AnyLetter) -> None:
        letter.opened_at = letter.progress_at = self._clock.time()
        self.open[letter] = None
        self._on_open()

    def end(self, letter: AnyLetter, error: Exception | None) -> None:
        if letter in self.open:
            del self.open[letter]
            letter.on_done(error)

    def tell(self, peer: int, frame: bytes, owner: Owner | None = None) -> None:
        """`owner`, if there is one, is told when the frame has left."""
        if self.over is not None or self.mail_with[peer].departed is not None:
            return
        if owner is None:
            self.links[peer].tell_mail(frame)
        else:
            self.links[peer].send_mail(frame[:HEADER_BYTES], memoryview(frame)[HEADER_BYTES:], owner=owner, number=0)

    def say(self, peer: int, kind: Kind, number: int, text: str = "") -> None:
        self.tell(peer, news(kind, text, collective=number, epoch=self.epoch))

    def say_withdrawn(self, peer: int, number: int, reason: str, *, leaving: bool) -> None:
        """One that is `leaving` leaves it to its goodbye to tell the other end, if that comes soon."""
        self.soon(lambda: self.say(peer, Kind.WITHDRAW, number, reason), leaving=leaving)

    def soon(self, act: Callable[[], None], *, leaving: bool) -> None:
        if leaving:
            self._clock.call_later(LEAVING_SECONDS, act)
        else:
            act()

    def aborted(self, letter: Letter, by: int, reason: str) -> CollectiveAborted:
        return CollectiveAborted(number=0, what=str(letter), by=by, reason=reason)

    def mismatch(self, letter: AnyLetter, sent: str, expected: str) -> MessageMismatch:
        peer = self.rank if letter.peer is None else letter.peer
        sender, receiver = (self.rank, peer) if isinstance(letter, Outgoing) else (peer, self.rank)
        return MessageMismatch(
            tag=letter.tag, sender=sender, sent=sent, receiver=receiver, expected=expected, rank=self.rank
        )
