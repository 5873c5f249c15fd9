"""Peer loss, and leaving: the end of a ring as one rank sees it, and what can still be finished.

Rules:
- A peer that says goodbye has finished everything up to a number: what is in flight up to there still arrives, and END
  on every lane of it says that it has.
- A connection that ends without a goodbye is a loss, and so is silence while a collective waits.
- Whoever waits for a peer of which nothing more can come has lost it, and knows that at once: its connections broke
  after its goodbye. If all that it sent has come instead, it has not finished that collective but heard from a third
  rank that it failed. We shall hear that too; only if not, the peer is lost.
- Who notices a loss tells all; who hears of it for the first time passes it on, for the one who noticed cannot perhaps
  be heard by everybody. All say who is lost, and who noticed.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from ringwide.collectives.deadlines import TICK_SECONDS, Clock, HeartbeatSource, Patient
from ringwide.collectives.running_collective import Collective, channel_of, is_after, sequence_of
from ringwide.errors import CorruptFrame, PeerLeft, PeerLost, RemoteProtocolError, RingwideError, fresh, ranks_named
from ringwide.protocol.frame import FrameKind, news
from ringwide.transport.wire import CutOff

logger = logging.getLogger("ringwide.collectives")

LAST_WORDS_SECONDS = 0.5


class LeavingLink(Protocol):
    """What leaving needs of a link; the simulator has its own."""

    @property
    def over(self) -> bool:
        """Nothing more is to be expected of it."""

    @property
    def delivered(self) -> bool:
        """All that was sent has reached the peer's kernel."""

    @property
    def moved(self) -> int:
        """Grows whenever something gets there or comes from there."""

    def finish(self, on_over: Callable[[], None]) -> None: ...

    def abandon(self) -> None: ...


class Leaving:
    """The way out of one rank. `on_done` is called when nobody is waited for any more."""

    def __init__(
        self,
        *,
        links: Mapping[int, LeavingLink],
        clock: Clock,
        timeout_seconds: float,
        warn_after_seconds: float,
        heartbeats: HeartbeatSource,
        on_done: Callable[[], object],
    ) -> None:
        self._links, self._clock, self._heartbeats, self._on_done = links, clock, heartbeats, on_done
        self._timeout, self._warn_after = timeout_seconds, warn_after_seconds
        self._tick_seconds = min(TICK_SECONDS, timeout_seconds / 4)
        self.done = False
        self._due = self._moved_at = self._warned_at = 0.0
        self._moved = -1
        self._lost: list[LeavingLink] = []
        self._lost_until = 0.0

    def begin(self, lost: Collection[int]) -> None:
        self._moved_at = self._warned_at = self._clock.time()
        self._lost = [link for peer, link in self._links.items() if peer in lost]
        self._lost_until = self._moved_at + LAST_WORDS_SECONDS
        for link in self._links.values():
            link.finish(self._look_who_is_left)
        self._let_go_of_the_lost(self._moved_at)
        self._look_who_is_left()
        if not self.done:
            self._tick_later()

    def silent(self, peers: Sequence[int], seconds: float) -> None:
        """Of these ranks nothing was heard for so long."""
        awaited = [peer for peer in peers if not self._links[peer].over]
        if awaited:
            whom = ranks_named(awaited)
            logger.warning("leaving without %s: nothing was heard for %g s (suspect_after_seconds)", whom, seconds)
        for peer in awaited:
            self._links[peer].abandon()

    def cut_short(self) -> None:
        for link in self._links.values():
            link.abandon()

    def _waiting_for(self) -> list[int]:
        return [peer for peer, link in self._links.items() if not link.over]

    def _look_who_is_left(self) -> None:
        if not self.done and not self._waiting_for():
            self.done = True
            self._heartbeats.rest()
            self._on_done()

    def _let_go_of_the_lost(self, now: float) -> None:
        for link in self._lost:
            if not link.over and (link.delivered or now >= self._lost_until):
                link.abandon()

    # -- how long it takes

    def _tick_later(self) -> None:
        self._due = self._clock.time() + self._tick_seconds
        self._clock.call_later(self._tick_seconds, self._tick)

    def _tick(self) -> None:
        if self.done:
            return
        self._heartbeats.watch(0)  # not a collective: nobody is late
        now, moved = self._clock.time(), sum(link.moved for link in self._links.values())
        self._let_go_of_the_lost(now)
        if now - self._due > self._tick_seconds:  # our own event loop stood still
            self._moved_at += now - self._due
        if moved != self._moved:
            self._moved, self._moved_at, self._warned_at = moved, now, now
        if now - self._moved_at >= self._timeout:
            self._give_up(now - self._moved_at)
        elif now - self._warned_at >= self._warn_after:
            self._warned_at = now
            self._warn(now - self._moved_at)
        if not self.done:
            self._tick_later()

    def _warn(self, seconds: float) -> None:
        whom = ranks_named(self._waiting_for())
        logger.warning("leaving: waiting for %s to read what was sent (%.0f s without progress)", whom, seconds)

    def _give_up(self, seconds: float) -> None:
        whom = ranks_named(self._waiting_for())
        logger.warning("leaving without %s: nothing was read for %.0f s", whom, seconds)
        self.cut_short()


GOODBYE_GRACE_SECONDS = 0.5
"""A bulk lane may break before the words on the express lane that explain it are read."""


class Transfers(Patient, Protocol):
    """Messages of a ring. They wait together with the collectives. A rank that leaves ends only those with itself."""

    def left(self, peer: int, error: PeerLeft) -> None: ...

    def fail(self, error: RingwideError) -> None: ...


class Gone(NamedTuple):
    """Since when nothing more can come from a peer, and why what is still due is lost."""

    at: float
    why: str


class PeerLoss:
    """Knows whether the ring is over, and why. `doom` ends every collective that is not finished with an error."""

    def __init__(
        self,
        *,
        rank: int,
        peers: Sequence[int],
        open_: Mapping[int, Collective],
        clock: Clock,
        epoch: int,
        tell_all: Callable[[bytes], None],
        doom: Callable[[Mapping[int, int], RingwideError], None],
        transfers: Transfers | None,
        on_over: Callable[[RingwideError], None],
    ) -> None:
        """`on_over` is told when nothing can be started any more, and why."""
        self._rank, self._peers, self._open, self._clock, self._epoch = rank, peers, open_, clock, epoch
        self._tell_all, self._doom = tell_all, doom
        self._departed: set[int] = set()  # who said goodbye
        self._cut: dict[int, Gone] = {}  # of those, whose connections broke
        self._complete: dict[int, Gone] = {}  # of those, who have sent all that they ever will
        self.anybody_gone = False  # in either of these ways
        self.lost: set[int] = set()
        self._leaving: Leaving | None = None  # this rank itself, after its goodbye
        self.over: RingwideError | None = None  # why nothing can be started any more
        self._last: dict[int, int] = {}  # when it is over: of each channel the last that those who left have finished
        self._on_over, self._transfers = on_over, transfers

    def check(self, number: int) -> None:
        """May a collective of this number still be started?"""
        if self.over is not None and self.is_over_for(number):
            raise fresh(self.over)

    def is_over_for(self, number: int) -> bool:
        """Can a collective of this number, if it is not open, never be started any more?"""
        return self.over is not None and is_after(number, self._last)

    def close_down(self, error: RingwideError) -> None:
        """No more collectives and no more messages: what is open fails."""
        self._end_collectives(error, {})
        if self._transfers is not None:
            self._transfers.fail(error)

    def _end_collectives(self, error: RingwideError, finished: Mapping[int, int]) -> None:
        """No more collectives, and those fail that are not finished."""
        before = finished if self.over is None else self._last
        last = {channel: min(number, before.get(channel, 0)) for channel, number in finished.items()}
        self._last = {channel: number for channel, number in last.items() if sequence_of(number)}
        if self.over is None:
            self.over = error
            self._on_over(error)
        self._doom(self._last, error)

    @property
    def _nothing_is_left(self) -> bool:
        """Nothing that could still end, and all know why."""
        return self.over is not None and not self._last

    # -- connections

    def other_lane_ended(self, peer: int, reason: Exception) -> None:
        """Any but the express lane. Words that explain it may be on their way there."""
        if peer not in self._departed and isinstance(reason, EOFError | OSError):
            self._clock.call_later(GOODBYE_GRACE_SECONDS, lambda: self.give_up_on(peer, reason))
        else:
            self.give_up_on(peer, reason)

    def heartbeat_lane_ended(self, peer: int, reason: Exception) -> None:
        """It has no END: who has said goodbye may hang up there, and its other lanes tell how it ended."""
        if isinstance(reason, CutOff) or not isinstance(reason, EOFError | OSError):
            self.other_lane_ended(peer, reason)
        else:
            self._clock.call_later(GOODBYE_GRACE_SECONDS, lambda: self._hung_up(peer, reason))

    def _hung_up(self, peer: int, reason: Exception) -> None:
        if peer not in self._departed:
            self.give_up_on(peer, reason)

    def stream_ended(self, peer: int) -> None:
        """All that this peer has ever sent is here."""
        if peer in self._departed:
            self._complete[peer] = Gone(self._clock.time(), "it has left, and has not sent all that is due")
            self.anybody_gone = True
            self._look_for_orphans_later()
        else:
            self.other_lane_ended(peer, EOFError("it ended its connections without a goodbye"))

    def look_for_orphans(self) -> None:
        """Does a collective wait for somebody from whom nothing more comes? It need not wait for its deadline."""
        self._fail_orphans(self._cut, self._clock.time())
        if self._complete:
            self._look_for_orphans_later()

    def _look_for_orphans_later(self) -> None:
        now = self._clock.time()
        self._clock.call_later(GOODBYE_GRACE_SECONDS, lambda: self._fail_orphans(self._complete, now))

    def _fail_orphans(self, gone: Mapping[int, Gone], since: float) -> None:
        """Those that have waited since then, for one who has been gone since then."""
        begun = [collective for collective in self._open.values() if collective.begun and collective.begun_at <= since]
        for peer, (gone_at, why) in gone.items():
            if gone_at <= since and any(peer in collective.waiting_for() for collective in begun):
                self._tell_of_loss(peer, why)
                self.close_down(PeerLost(rank=peer, reason=why))
                return

    def give_up_on(self, peer: int, reason: Exception) -> None:
        """Nothing can be expected of this peer any more, or of ourselves, if the reason is neither it nor the way."""
        if self._nothing_is_left:
            return
        ended = isinstance(reason, EOFError | OSError)
        if ended and peer in self._departed:
            self._cut[peer] = Gone(self._clock.time(), f"{reason}, after its goodbye, with frames on their way")
            self.anybody_gone = True
            self.look_for_orphans()
            return
        self._tell_of_loss(peer if ended or isinstance(reason, RemoteProtocolError) else self._rank, str(reason))
        self.close_down(self._as_error(peer, reason))

    def _as_error(self, peer: int, reason: Exception) -> RingwideError:
        match reason:
            case CorruptFrame():
                return CorruptFrame(f"from rank {peer}: {reason}")
            case RemoteProtocolError():
                return RemoteProtocolError(f"rank {peer} broke the protocol: {reason}")
            case EOFError() | OSError():
                return PeerLost(rank=peer, reason=str(reason))
        return RingwideError(f"rank {self._rank} could not handle a frame: {reason!r}")

    # -- leaving, and silence

    def leave(self, leaving: Leaving) -> None:
        """This rank has said goodbye, and waits for the others to read what it sent."""
        self._leaving = leaving
        leaving.begin(self.lost)

    def silent(self, peers: Sequence[int], seconds: float) -> None:
        """Of these ranks nothing was heard for so long, though a collective waits for them, or we wait to leave."""
        if self._leaving is not None:
            self._leaving.silent(peers, seconds)
            return
        if self._nothing_is_left or not (self._open or (self._transfers is not None and self._transfers.waits)):
            return
        reason = f"nothing was heard of it for {seconds:g} s (suspect_after_seconds)"
        if len(peers) > 1 and len(peers) == len(self._peers):
            # We are more likely to be cut off than all others to be frozen at once: they must not blame each other.
            self._tell_of_loss(self._rank, "it hears of nobody")
            reason += f", nor of any other: is rank {self._rank} cut off?"
        else:
            for peer in peers:
                self._tell_of_loss(peer, reason)
        self.close_down(PeerLost(rank=peers[0], reason=reason))

    # -- news

    def hear_goodbye(self, peer: int, last: Sequence[int], reason: str) -> None:
        """`last`: of each channel the number of the last collective that the peer has finished."""
        finished = {channel_of(number): number for number in last}
        self._departed.add(peer)
        error = PeerLeft(rank=peer, reason=reason)
        self._end_collectives(error, finished)
        if self._transfers is not None:
            self._transfers.left(peer, error)

    def hear_of_loss(self, peer: int, words: str) -> None:
        if self._nothing_is_left:
            return
        about, by, reason = (*words.split(" ", 2), "", "")[:3]
        lost, noticed_by = self._rank_in(about, peer), self._rank_in(by, peer)
        self._tell_all(news(FrameKind.LOST, words, epoch=self._epoch))
        self.lost.add(lost)
        if lost == self._rank:
            self.close_down(PeerLost(rank=noticed_by, reason=f"it has given up on this rank: {reason}"))
        else:
            self.close_down(PeerLost(rank=lost, reason=f"{reason} (noticed by rank {noticed_by})"))

    def _tell_of_loss(self, lost: int, reason: str) -> None:
        self.lost.add(lost)
        self._tell_all(news(FrameKind.LOST, f"{lost} {self._rank} {reason}", epoch=self._epoch))

    def _rank_in(self, word: str, otherwise: int) -> int:
        return next((rank for rank in (self._rank, *self._peers) if word == str(rank)), otherwise)
