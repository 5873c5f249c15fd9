"""The post office of one rank: every message to and from it, and what the mail lanes say of them.

Rules:
- A mail lane is never paused: what comes was accepted, and has memory, or is dropped.
- A letter that is done, with an error or without, has left the lanes: they neither read nor write its memory any more.
- A peer that leaves ends the messages with itself, except for those that it has sent already. A peer that is lost ends
  all, as it ends the ring.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ringwide.collective.deadlines import Clock
from ringwide.errors import PeerLeft, RemoteProtocolError, RingwideError
from ringwide.mail.correspondent import Correspondent
from ringwide.mail.desk import AnyLetter, Desk, LinkLike
from ringwide.mail.letter import Incoming, Outgoing
from ringwide.mail.patience import Patience
from ringwide.mail.receiving import Receiving
from ringwide.mail.sending import Sending
from ringwide.protocol.frame import DATA, Header, Kind, news
from ringwide.protocol.p2p import KEPT_LIMIT_BYTES, read_offer, read_wanted
from ringwide.transport.buffers import Scratch

_KINDS = (
    DATA,
    Kind.OFFER,
    Kind.ACCEPT,
    Kind.DECLINE,
    Kind.WITHDRAW,
    Kind.HELD,
    Kind.LATER,
    Kind.WANTED,
    Kind.ABORT,
)


class LaneLike(Protocol):
    """What mail needs of the lane on which a frame comes."""

    @property
    def peer(self) -> int: ...

    @property
    def scratch(self) -> Scratch: ...


class PostOffice:
    """Where letters are handed in and out."""

    def __init__(
        self,
        *,
        rank: int,
        links: Mapping[int, LinkLike],
        clock: Clock,
        segment_bytes: int,
        timeout_seconds: float,
        warn_after_seconds: float,
        on_open: Callable[[], None],
        on_lane_ended: Callable[[int, Exception], None],
        epoch: int = 0,
        kept_limit_bytes: int = KEPT_LIMIT_BYTES,
    ) -> None:
        self._desk = Desk(
            rank=rank,
            links=links,
            clock=clock,
            segment_bytes=segment_bytes,
            on_open=on_open,
            epoch=epoch,
            kept_limit_bytes=kept_limit_bytes,
        )
        self._sending, self._receiving = Sending(self._desk), Receiving(self._desk)
        self._patience = Patience(
            self._desk, timeout_seconds=timeout_seconds, warn_after_seconds=warn_after_seconds, give_up=self._time_out
        )
        self._on_lane_ended = on_lane_ended
        self.on_exchange_given_up: Callable[[int, int, str], None] = _nobody_exchanges
        """on_exchange_given_up(peer, number, words)"""

    # -- from above

    def send(self, letter: Outgoing) -> None:
        """Offer it. `on_done` is called once, with the error or when all has left; perhaps before this returns."""
        self._check(letter.peer)
        self._desk.enter(letter)
        if letter.peer == self._desk.rank:
            self._receiving.offer_own(letter)
        else:
            self._sending.offer(letter)

    def send_on(self, letter: Outgoing) -> None:
        self._sending.send_on(letter)

    def receive(self, letter: Incoming) -> None:
        """Wait for what fits. `on_done` is called once, with the error or when all is in `memory`."""
        self._check(letter.source)
        self._desk.enter(letter)
        self._receiving.post(letter)

    def give_up(self, letter: AnyLetter, reason: str, *, leaving: bool = False) -> None:
        """Its caller does not want it any more, and hears no more of it; the other end does.

        One that is `leaving` leaves it to its goodbye to tell the other end, if that comes soon.
        """
        if letter in self._desk.open:
            letter.on_done = _nobody
            self._withdraw(letter, reason, leaving=leaving)
            self._desk.end(letter, None)

    def give_up_exchange(self, number: int, words: str, *, leaving: bool = False) -> None:
        """Tell all that this rank has given up on an exchange: because of which rank, and why."""
        frame = news(Kind.ABORT, words, collective=number, epoch=self._desk.epoch)

        def tell_all() -> None:
            for peer in self._desk.mail_with:
                self._desk.tell(peer, frame)

        self._desk.soon(tell_all, leaving=leaving)

    def _check(self, peer: int | None) -> None:
        """May a message to or from this rank still be opened?"""
        if self._desk.over is not None:
            raise self._desk.over
        others = self._desk.mail_with.values()
        gone = [mail.departed for mail in others if mail.departed is not None and peer in (None, mail.peer)]
        if gone and (peer is not None or len(gone) == len(others)):
            raise gone[0]

    def _withdraw(self, letter: AnyLetter, reason: str, *, leaving: bool = False) -> None:
        """Take the letter out of everything, and tell the other end if it knows of it."""
        if isinstance(letter, Incoming):
            self._receiving.stop(letter, reason, leaving=leaving)
        elif letter.peer == self._desk.rank:
            self._receiving.take_back_own(letter)
        else:
            self._sending.take_back(letter, reason, leaving=leaving)

    # -- from below

    def landing(self, lane: LaneLike, header: Header) -> memoryview:
        """Where the payload of a large frame goes."""
        self._check_frame(lane.peer, header)
        place = self._receiving.place_for(self._desk.mail_with[lane.peer], header) if header.kind == DATA else None
        return lane.scratch.take(header.payload_bytes) if place is None else place

    def arrived(self, lane: LaneLike, header: Header, payload: memoryview) -> None:
        self._check_frame(lane.peer, header)
        if self._desk.over is not None:
            return  # nobody waits for anything
        mail, number = self._desk.mail_with[lane.peer], header.collective
        match header.kind:
            case Kind.DATA:
                self._receiving.hear_data(mail, header, payload)
            case Kind.OFFER:
                self._receiving.hear_offer(mail, read_offer(header, payload))
            case Kind.HELD:
                self._receiving.hear_held(mail, read_offer(header, payload))
            case Kind.LATER:
                self._sending.hear_later(mail, number)
            case Kind.WANTED:
                self._sending.hear_wanted(mail, *read_wanted(payload))
            case Kind.ACCEPT:
                self._sending.hear_accept(mail, number)
            case Kind.DECLINE:
                self._sending.hear_decline(mail, number, _words(payload))
            case Kind.WITHDRAW:
                self._hear_withdraw(mail, number, _words(payload))
            case _:
                self.on_exchange_given_up(lane.peer, number, _words(payload))

    def _check_frame(self, peer: int, header: Header) -> None:
        if header.epoch != self._desk.epoch:
            raise RemoteProtocolError(f"rank {peer} sent a frame of epoch {header.epoch}, this is {self._desk.epoch}")
        if header.kind not in _KINDS:
            raise RemoteProtocolError(f"rank {peer} sent a frame of kind {header.kind} on a mail lane")

    def _hear_withdraw(self, mail: Correspondent, number: int, reason: str) -> None:
        mail.check_known(number)
        if mail.is_ours(number):
            self._sending.hear_unwanted(mail, number, reason)
        else:
            self._receiving.hear_withdrawn(mail, number, reason)

    def ended(self, lane: LaneLike) -> None:
        """All that comes on a mail lane has come."""
        mail = self._desk.mail_with[lane.peer]
        mail.lane_ended = True
        if mail.departed is not None:
            self._fail_all(mail.arriving.values(), mail.departed)

    def lost(self, lane: LaneLike, reason: Exception) -> None:
        """A mail lane has ended, and not as it should."""
        self.ended(lane)
        self._on_lane_ended(lane.peer, reason)

    # -- the end

    def left(self, peer: int, error: PeerLeft) -> None:
        """A peer has said goodbye. What it has sent before still arrives."""
        if self._desk.over is not None:
            return
        mail = self._desk.mail_with[peer]
        mail.departed = error
        self._fail_all(mail.outgoing(), error)
        self._receiving.forget_offers_of(peer)
        self._fail_all([letter for letter in self._desk.open if self._waits_in_vain(letter, peer)], error)
        if mail.lane_ended:
            self._fail_all(mail.arriving.values(), error)

    def _waits_in_vain(self, letter: AnyLetter, left: int) -> bool:
        if isinstance(letter, Outgoing) or letter.number:
            return False  # it is under way
        if letter.source is None:
            return all(mail.departed is not None for mail in self._desk.mail_with.values())
        return letter.source == left

    def fail(self, error: RingwideError) -> None:
        """The ring is over: whatever is open ends with this error."""
        if self._desk.over is None:
            self._desk.over = error
        self._fail_all(self._desk.open, error)

    def _fail_all(self, letters: Iterable[AnyLetter], error: Exception) -> None:
        for letter in list(letters):
            self._withdraw(letter, str(error))
            self._desk.end(letter, error)

    # -- deadlines

    @property
    def waits(self) -> bool:
        return bool(self._desk.open)

    def waits_since(self) -> float:
        return next(iter(self._desk.open)).opened_at

    def forgive(self, seconds: float) -> None:
        self._patience.forgive(seconds)

    def check_progress(self, now: float) -> None:
        self._patience.check(now)

    def _time_out(self, letter: AnyLetter, reason: str, error: Exception) -> None:
        self._withdraw(letter, reason)
        self._desk.end(letter, error)


def _words(payload: memoryview) -> str:
    return bytes(payload).decode(errors="replace")


def _nobody(_: Exception | None) -> None: ...


def _nobody_exchanges(peer: int, number: int, _: str) -> None:
    raise RemoteProtocolError(f"rank {peer} gave up on exchange {number}, where nobody exchanges anything")
