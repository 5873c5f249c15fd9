"""Endpoint of one rank for point-to-point messages: all its transfers, and the frames on its p2p lanes.

Rules:
- A p2p lane is never paused: an arriving payload was accepted and has memory, or it is dropped.
- When a transfer is done, with an error or without, no lane reads or writes its memory any more.
- A peer that leaves ends the transfers with itself, except for messages that it has sent already. A peer that is lost
  ends all transfers, as it ends the ring.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping

from ringwide.collectives.bucket_operation import LaneLike
from ringwide.collectives.deadlines import Clock
from ringwide.collectives.running_collective import LaneSharing
from ringwide.errors import CollectiveTimeout, PeerLeft, RemoteProtocolError, RingwideError, ranks_named
from ringwide.p2p.receiver import Receiver
from ringwide.p2p.sender import Sender
from ringwide.p2p.transfer import AnyTransfer, IncomingTransfer, OpenTransfers, OutgoingTransfer, P2PLink, PeerTransfers
from ringwide.protocol.frame import DATA, FrameKind, Header, news, words_in
from ringwide.protocol.p2p import KEPT_LIMIT_BYTES, read_offer, read_wanted

logger = logging.getLogger("ringwide.p2p")


class TransferDeadlines:
    """Deadlines of the open transfers, checked together with those of collectives.

    At most one warning every `warn_after_seconds`, for all transfers that have waited so long.
    """

    def __init__(
        self,
        transfers: OpenTransfers,
        *,
        timeout_seconds: float,
        warn_after_seconds: float,
        give_up: Callable[[AnyTransfer, str, Exception], None],
    ) -> None:
        self._transfers, self._give_up = transfers, give_up
        self.timeout_seconds, self._warn_after = timeout_seconds, warn_after_seconds
        self._warned_at = -math.inf

    def forgive(self, seconds: float) -> None:
        """Do not count this time: our own event loop stood still."""
        self._warned_at += seconds
        for transfer in self._transfers.open:
            transfer.progress_at += seconds

    def check(self, now: float) -> None:
        late = []
        for transfer in list(self._transfers.open):
            if transfer.progress != transfer.progress_seen:
                transfer.progress_seen, transfer.progress_at = transfer.progress, now
            elif now - transfer.progress_at >= self.timeout_seconds:
                self._time_out(transfer)
            elif now - transfer.progress_at >= self._warn_after:
                late.append(transfer)
        if late and now - self._warned_at >= self._warn_after:
            self._warned_at = now
            self._warn(late, now)

    def _time_out(self, transfer: AnyTransfer) -> None:
        reason = f"Timed out after no progress for {self.timeout_seconds:g} s (collective_timeout_seconds)"
        whom = self._waiting_for(transfer)
        error = CollectiveTimeout(number=0, what=str(transfer), waiting_for=whom, seconds=self.timeout_seconds)
        self._give_up(transfer, reason, error)

    def _warn(self, late: list[AnyTransfer], now: float) -> None:
        """Log one line, however many transfers are late."""
        oldest = min(late, key=lambda transfer: transfer.progress_at)
        whom = ranks_named(sorted({peer for transfer in late for peer in self._waiting_for(transfer)}))
        which = str(oldest) if len(late) == 1 else f"{len(late)} messages, first {oldest}"
        logger.warning("%s: waiting for %s (%.0f s without progress)", which, whom, now - oldest.progress_at)

    def _waiting_for(self, transfer: AnyTransfer) -> list[int]:
        """A receive from any rank waits for all."""
        return sorted(self._transfers.by_peer) if transfer.peer is None else [transfer.peer]


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


OnGivenUp = Callable[[int, int, str], None]
"""on_given_up(peer, number, text): a peer has given up on an exchange."""


class Endpoint:
    """Sends and receives the transfers of one rank."""

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
        sharing: LaneSharing | None = None,
        kept_limit_bytes: int = KEPT_LIMIT_BYTES,
    ) -> None:
        sharing = sharing or LaneSharing()
        self._transfers = OpenTransfers(
            rank=rank,
            links=links,
            clock=clock,
            segment_bytes=segment_bytes,
            on_open=on_open,
            epoch=sharing.epoch,
            kept_limit_bytes=kept_limit_bytes,
        )
        self._sending, self._receiving = Sender(self._transfers), Receiver(self._transfers)
        self._deadlines = TransferDeadlines(
            self._transfers,
            timeout_seconds=timeout_seconds,
            warn_after_seconds=warn_after_seconds,
            give_up=self._time_out,
        )
        self._on_lane_ended, self._epoch, self._others = on_lane_ended, sharing.epoch, sharing.others
        self._on_exchange_given_up: OnGivenUp = _no_exchange

    # -- from above

    def watch_given_up_exchanges(self, on_given_up: OnGivenUp) -> None:
        """Have `on_given_up` called when a peer gives up on an exchange."""
        self._on_exchange_given_up = on_given_up

    def send(self, transfer: OutgoingTransfer) -> None:
        """Offer a message. `on_done` is called once, with an error or when all has left; perhaps at once."""
        self._check(transfer.peer)
        self._transfers.enter(transfer)
        if transfer.peer == self._transfers.rank:
            self._receiving.offer_own(transfer)
        else:
            self._sending.offer(transfer)

    def send_on(self, transfer: OutgoingTransfer) -> None:
        """A segment has left: send the next."""
        self._sending.send_on(transfer)

    def receive(self, transfer: IncomingTransfer) -> None:
        """Wait for a matching message. `on_done` is called once, with an error or when all is in `memory`."""
        self._check(transfer.source)
        self._transfers.enter(transfer)
        self._receiving.post(transfer)

    def give_up(self, transfer: AnyTransfer, reason: str, *, leaving: bool = False) -> None:
        """Cancel a transfer without calling `on_done`, and tell the other end.

        If this rank is `leaving`, its goodbye tells the other end, provided that it comes soon.
        """
        if transfer in self._transfers.open:
            transfer.on_done = _ignore
            self._withdraw(transfer, reason, leaving=leaving)
            self._transfers.end(transfer, None)

    def give_up_exchange(self, number: int, text: str, *, leaving: bool = False) -> None:
        """Tell all that this rank has given up on an exchange. `text` has the rank where it began, and the reason."""
        frame = news(FrameKind.ABORT, text, collective=number, epoch=self._transfers.epoch)

        def tell_all() -> None:
            for peer in self._transfers.by_peer:
                self._transfers.tell(peer, frame)

        self._transfers.soon(tell_all, leaving=leaving)

    def _check(self, peer: int | None) -> None:
        """Raise if a message to or from this rank can no longer be opened."""
        if self._transfers.over is not None:
            raise self._transfers.over
        others = self._transfers.by_peer.values()
        gone = [
            with_peer.departed
            for with_peer in others
            if with_peer.departed is not None and peer in (None, with_peer.peer)
        ]
        if gone and (peer is not None or len(gone) == len(others)):
            raise gone[0]

    def _withdraw(self, transfer: AnyTransfer, reason: str, *, leaving: bool = False) -> None:
        """Remove a transfer, and tell the other end if it knows of it."""
        if isinstance(transfer, IncomingTransfer):
            self._receiving.stop(transfer, reason, leaving=leaving)
        elif transfer.peer == self._transfers.rank:
            self._receiving.take_back_own(transfer)
        else:
            self._sending.take_back(transfer, reason, leaving=leaving)

    # -- from below

    def landing(self, lane: LaneLike, header: Header, here: memoryview | None = None) -> memoryview | None:
        """Memory for the payload of a large frame."""
        if header.epoch != self._epoch:
            return self._others.landing(lane, header, here)
        _check_kind(lane.peer, header)
        destination = (
            self._receiving.destination_for(self._transfers.by_peer[lane.peer], header) if header.kind == DATA else None
        )
        return lane.scratch.take(header.payload_bytes) if destination is None else destination

    def arrived(self, lane: LaneLike, header: Header, payload: memoryview) -> None:
        if header.epoch != self._epoch:
            self._others.arrived(lane, header, payload)
            return
        _check_kind(lane.peer, header)
        if self._transfers.over is not None:
            return  # nothing waits any more
        with_peer, number = self._transfers.by_peer[lane.peer], header.collective
        match header.kind:
            case FrameKind.DATA:
                self._receiving.on_data(with_peer, header, payload)
            case FrameKind.OFFER:
                self._receiving.on_offer(with_peer, read_offer(header, payload))
            case FrameKind.HELD:
                self._receiving.on_held(with_peer, read_offer(header, payload))
            case FrameKind.LATER:
                self._sending.on_later(with_peer, number)
            case FrameKind.WANTED:
                self._sending.on_wanted(with_peer, *read_wanted(payload))
            case FrameKind.ACCEPT:
                self._sending.on_accept(with_peer, number)
            case FrameKind.DECLINE:
                self._sending.on_decline(with_peer, number, words_in(payload))
            case FrameKind.WITHDRAW:
                self._on_withdraw(with_peer, number, words_in(payload))
            case _:
                self._on_exchange_given_up(lane.peer, number, words_in(payload))

    def _on_withdraw(self, with_peer: PeerTransfers, number: int, reason: str) -> None:
        with_peer.check_known(number)
        if with_peer.is_ours(number):
            self._sending.on_receiver_withdrew(with_peer, number, reason)
        else:
            self._receiving.on_sender_withdrew(with_peer, number, reason)

    def ended(self, lane: LaneLike) -> None:
        """The peer's END has come on a p2p lane."""
        self._others.ended(lane)
        with_peer = self._transfers.by_peer[lane.peer]
        with_peer.lane_ended = True
        if with_peer.departed is not None:
            self._fail_all(with_peer.arriving.values(), with_peer.departed)

    def lost(self, lane: LaneLike, reason: Exception) -> None:
        """A p2p lane has broken."""
        self._others.lost(lane, reason)
        self.ended(lane)
        self._on_lane_ended(lane.peer, reason)

    # -- the end

    def left(self, peer: int, error: PeerLeft) -> None:
        """A peer has said goodbye. Messages that it sent before still arrive."""
        if self._transfers.over is not None:
            return
        with_peer = self._transfers.by_peer[peer]
        with_peer.departed = error
        self._fail_all(with_peer.outgoing(), error)
        self._receiving.forget_offers_of(peer)
        self._fail_all([transfer for transfer in self._transfers.open if self._can_never_match(transfer, peer)], error)
        if with_peer.lane_ended:
            self._fail_all(with_peer.arriving.values(), error)

    def _can_never_match(self, transfer: AnyTransfer, left: int) -> bool:
        if isinstance(transfer, OutgoingTransfer) or transfer.number:
            return False  # it is under way
        if transfer.source is None:
            return all(with_peer.departed is not None for with_peer in self._transfers.by_peer.values())
        return transfer.source == left

    def withdraw_all(self, error: RingwideError) -> None:
        """End all transfers with this error, and tell their other ends, where the lanes stay open."""
        self._fail_all(self._transfers.open, error)

    def fail(self, error: RingwideError) -> None:
        """The ring is over: end all transfers with this error."""
        if self._transfers.over is None:
            self._transfers.over = error
        self._fail_all(self._transfers.open, error)

    def _fail_all(self, transfers: Iterable[AnyTransfer], error: Exception) -> None:
        for transfer in list(transfers):
            self._withdraw(transfer, str(error))
            self._transfers.end(transfer, error)

    # -- deadlines

    @property
    def waits(self) -> bool:
        return bool(self._transfers.open)

    def waits_since(self) -> float:
        return next(iter(self._transfers.open)).opened_at

    def forgive(self, seconds: float) -> None:
        self._deadlines.forgive(seconds)

    def check_progress(self, now: float) -> None:
        self._deadlines.check(now)

    def set_timeout(self, seconds: float) -> None:
        self._deadlines.timeout_seconds = seconds

    def _time_out(self, transfer: AnyTransfer, reason: str, error: Exception) -> None:
        self._withdraw(transfer, reason)
        self._transfers.end(transfer, error)


def _check_kind(peer: int, header: Header) -> None:
    if header.kind not in _KINDS:
        raise RemoteProtocolError(f"rank {peer} sent a frame of kind {header.kind} on a p2p lane")


def _ignore(_: Exception | None) -> None: ...


def _no_exchange(peer: int, number: int, _: str) -> None:
    raise RemoteProtocolError(f"rank {peer} gave up on exchange {number}, but this ring has no exchanges")
