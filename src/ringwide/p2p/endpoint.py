"""The endpoint of one rank: every message to and from it, and what the p2p lanes say of them.

Rules:
- A p2p lane is never paused: what comes was accepted, and has memory, or is dropped.
- A transfer that is done, with an error or without, has left the lanes: its memory is neither read nor written there.
- A peer that leaves ends the messages with itself, except for those that it has sent already. A peer that is lost ends
  all, as it ends the ring.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ringwide.collectives.deadlines import Clock
from ringwide.errors import CollectiveTimeout, PeerLeft, RemoteProtocolError, RingwideError, ranks_named
from ringwide.p2p.receiver import Receiver
from ringwide.p2p.sender import Sender
from ringwide.p2p.transfer import AnyTransfer, IncomingTransfer, OpenTransfers, OutgoingTransfer, P2PLink, PeerTransfers
from ringwide.protocol.frame import DATA, FrameKind, Header, news
from ringwide.protocol.p2p import KEPT_LIMIT_BYTES, read_offer, read_wanted
from ringwide.transport.buffers import Scratch

logger = logging.getLogger("ringwide.p2p")


class TransferDeadlines:
    """Looks at the open transfers whenever the deadlines of collectives are looked at.

    There is a warning every `warn_after_seconds` at most, for all that wait for as long.
    """

    def __init__(
        self,
        desk: OpenTransfers,
        *,
        timeout_seconds: float,
        warn_after_seconds: float,
        give_up: Callable[[AnyTransfer, str, Exception], None],
    ) -> None:
        self._desk, self._give_up = desk, give_up
        self._timeout, self._warn_after = timeout_seconds, warn_after_seconds
        self._warned_at = -math.inf

    def forgive(self, seconds: float) -> None:
        """Our own event loop stood still for so long."""
        self._warned_at += seconds
        for transfer in self._desk.open:
            transfer.progress_at += seconds

    def check(self, now: float) -> None:
        late = []
        for transfer in list(self._desk.open):
            if transfer.progress != transfer.progress_seen:
                transfer.progress_seen, transfer.progress_at = transfer.progress, now
            elif now - transfer.progress_at >= self._timeout:
                self._time_out(transfer)
            elif now - transfer.progress_at >= self._warn_after:
                late.append(transfer)
        if late and now - self._warned_at >= self._warn_after:
            self._warned_at = now
            self._warn(late, now)

    def _time_out(self, transfer: AnyTransfer) -> None:
        reason = f"no progress for {self._timeout:g} s (collective_timeout_seconds)"
        whom = self._waiting_for(transfer)
        error = CollectiveTimeout(number=0, what=str(transfer), waiting_for=whom, seconds=self._timeout)
        self._give_up(transfer, reason, error)

    def _warn(self, late: list[AnyTransfer], now: float) -> None:
        """One line, however many there are."""
        oldest = min(late, key=lambda transfer: transfer.progress_at)
        whom = ranks_named(sorted({peer for transfer in late for peer in self._waiting_for(transfer)}))
        which = str(oldest) if len(late) == 1 else f"{len(late)} messages, first {oldest}"
        logger.warning("%s: waiting for %s (%.0f s without progress)", which, whom, now - oldest.progress_at)

    def _waiting_for(self, transfer: AnyTransfer) -> list[int]:
        """A receive from anybody waits for all."""
        return sorted(self._desk.p2p_with) if transfer.peer is None else [transfer.peer]


_KINDS = (
    DATA,
    FrameKind.OFFER,
    FrameKind.ACCEPT,
    FrameKind.DECLINE,
    FrameKind.WITHDRAW,
    FrameKind.HELD,
    FrameKind.LATER,
    FrameKind.WANTED,
    FrameKind.ABORT,
)


class P2PLane(Protocol):
    """What p2p needs of the lane on which a frame comes."""

    @property
    def peer(self) -> int: ...

    @property
    def scratch(self) -> Scratch: ...


OnGivenUp = Callable[[int, int, str], None]
"""Told which peer has given up on which exchange, and its words."""


class Endpoint:
    """Where transfers are handed in and out."""

    def __init__(
        self,
        *,
        rank: int,
        links: Mapping[int, P2PLink],
        clock: Clock,
        segment_bytes: int,
        timeout_seconds: float,
        warn_after_seconds: float,
        on_open: Callable[[], None],
        on_lane_ended: Callable[[int, Exception], None],
        epoch: int = 0,
        kept_limit_bytes: int = KEPT_LIMIT_BYTES,
    ) -> None:
        self._desk = OpenTransfers(
            rank=rank,
            links=links,
            clock=clock,
            segment_bytes=segment_bytes,
            on_open=on_open,
            epoch=epoch,
            kept_limit_bytes=kept_limit_bytes,
        )
        self._sending, self._receiving = Sender(self._desk), Receiver(self._desk)
        self._patience = TransferDeadlines(
            self._desk, timeout_seconds=timeout_seconds, warn_after_seconds=warn_after_seconds, give_up=self._time_out
        )
        self._on_lane_ended = on_lane_ended
        self._on_exchange_given_up: OnGivenUp = _nobody_exchanges

    # -- from above

    def hear_given_up_exchanges(self, on_given_up: OnGivenUp) -> None:
        self._on_exchange_given_up = on_given_up

    def send(self, transfer: OutgoingTransfer) -> None:
        """Offer it. `on_done` is called once, with the error or when all has left; perhaps before this returns."""
        self._check(transfer.peer)
        self._desk.enter(transfer)
        if transfer.peer == self._desk.rank:
            self._receiving.offer_own(transfer)
        else:
            self._sending.offer(transfer)

    def send_on(self, transfer: OutgoingTransfer) -> None:
        self._sending.send_on(transfer)

    def receive(self, transfer: IncomingTransfer) -> None:
        """Wait for what fits. `on_done` is called once, with the error or when all is in `memory`."""
        self._check(transfer.source)
        self._desk.enter(transfer)
        self._receiving.post(transfer)

    def give_up(self, transfer: AnyTransfer, reason: str, *, leaving: bool = False) -> None:
        """Its caller does not want it any more, and hears no more of it; the other end does.

        One that is `leaving` leaves it to its goodbye to tell the other end, if that comes soon.
        """
        if transfer in self._desk.open:
            transfer.on_done = _nobody
            self._withdraw(transfer, reason, leaving=leaving)
            self._desk.end(transfer, None)

    def give_up_exchange(self, number: int, words: str, *, leaving: bool = False) -> None:
        """Tell all that this rank has given up on an exchange: because of which rank, and why."""
        frame = news(FrameKind.ABORT, words, collective=number, epoch=self._desk.epoch)

        def tell_all() -> None:
            for peer in self._desk.p2p_with:
                self._desk.tell(peer, frame)

        self._desk.soon(tell_all, leaving=leaving)

    def _check(self, peer: int | None) -> None:
        """May a message to or from this rank still be opened?"""
        if self._desk.over is not None:
            raise self._desk.over
        others = self._desk.p2p_with.values()
        gone = [p2p.departed for p2p in others if p2p.departed is not None and peer in (None, p2p.peer)]
        if gone and (peer is not None or len(gone) == len(others)):
            raise gone[0]

    def _withdraw(self, transfer: AnyTransfer, reason: str, *, leaving: bool = False) -> None:
        """Take the transfer out of everything, and tell the other end if it knows of it."""
        if isinstance(transfer, IncomingTransfer):
            self._receiving.stop(transfer, reason, leaving=leaving)
        elif transfer.peer == self._desk.rank:
            self._receiving.take_back_own(transfer)
        else:
            self._sending.take_back(transfer, reason, leaving=leaving)

    # -- from below

    def landing(self, lane: P2PLane, header: Header) -> memoryview:
        """Where the payload of a large frame goes."""
        self._check_frame(lane.peer, header)
        place = self._receiving.place_for(self._desk.p2p_with[lane.peer], header) if header.kind == DATA else None
        return lane.scratch.take(header.payload_bytes) if place is None else place

    def arrived(self, lane: P2PLane, header: Header, payload: memoryview) -> None:
        self._check_frame(lane.peer, header)
        if self._desk.over is not None:
            return  # nobody waits for anything
        p2p, number = self._desk.p2p_with[lane.peer], header.collective
        match header.kind:
            case FrameKind.DATA:
                self._receiving.hear_data(p2p, header, payload)
            case FrameKind.OFFER:
                self._receiving.hear_offer(p2p, read_offer(header, payload))
            case FrameKind.HELD:
                self._receiving.hear_held(p2p, read_offer(header, payload))
            case FrameKind.LATER:
                self._sending.hear_later(p2p, number)
            case FrameKind.WANTED:
                self._sending.hear_wanted(p2p, *read_wanted(payload))
            case FrameKind.ACCEPT:
                self._sending.hear_accept(p2p, number)
            case FrameKind.DECLINE:
                self._sending.hear_decline(p2p, number, _words(payload))
            case FrameKind.WITHDRAW:
                self._hear_withdraw(p2p, number, _words(payload))
            case _:
                self._on_exchange_given_up(lane.peer, number, _words(payload))

    def _check_frame(self, peer: int, header: Header) -> None:
        if header.epoch != self._desk.epoch:
            raise RemoteProtocolError(f"rank {peer} sent a frame of epoch {header.epoch}, this is {self._desk.epoch}")
        if header.kind not in _KINDS:
            raise RemoteProtocolError(f"rank {peer} sent a frame of kind {header.kind} on a p2p lane")

    def _hear_withdraw(self, p2p: PeerTransfers, number: int, reason: str) -> None:
        p2p.check_known(number)
        if p2p.is_ours(number):
            self._sending.hear_unwanted(p2p, number, reason)
        else:
            self._receiving.hear_withdrawn(p2p, number, reason)

    def ended(self, lane: P2PLane) -> None:
        """All that comes on a p2p lane has come."""
        p2p = self._desk.p2p_with[lane.peer]
        p2p.lane_ended = True
        if p2p.departed is not None:
            self._fail_all(p2p.arriving.values(), p2p.departed)

    def lost(self, lane: P2PLane, reason: Exception) -> None:
        """A p2p lane has ended, and not as it should."""
        self.ended(lane)
        self._on_lane_ended(lane.peer, reason)

    # -- the end

    def left(self, peer: int, error: PeerLeft) -> None:
        """A peer has said goodbye. What it has sent before still arrives."""
        if self._desk.over is not None:
            return
        p2p = self._desk.p2p_with[peer]
        p2p.departed = error
        self._fail_all(p2p.outgoing(), error)
        self._receiving.forget_offers_of(peer)
        self._fail_all([transfer for transfer in self._desk.open if self._waits_in_vain(transfer, peer)], error)
        if p2p.lane_ended:
            self._fail_all(p2p.arriving.values(), error)

    def _waits_in_vain(self, transfer: AnyTransfer, left: int) -> bool:
        if isinstance(transfer, OutgoingTransfer) or transfer.number:
            return False  # it is under way
        if transfer.source is None:
            return all(p2p.departed is not None for p2p in self._desk.p2p_with.values())
        return transfer.source == left

    def fail(self, error: RingwideError) -> None:
        """The ring is over: whatever is open ends with this error."""
        if self._desk.over is None:
            self._desk.over = error
        self._fail_all(self._desk.open, error)

    def _fail_all(self, transfers: Iterable[AnyTransfer], error: Exception) -> None:
        for transfer in list(transfers):
            self._withdraw(transfer, str(error))
            self._desk.end(transfer, error)

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

    def _time_out(self, transfer: AnyTransfer, reason: str, error: Exception) -> None:
        self._withdraw(transfer, reason)
        self._desk.end(transfer, error)


def _words(payload: memoryview) -> str:
    return bytes(payload).decode(errors="replace")


def _nobody(_: Exception | None) -> None: ...


def _nobody_exchanges(peer: int, number: int, _: str) -> None:
    raise RemoteProtocolError(f"rank {peer} gave up on exchange {number}, where nobody exchanges anything")
