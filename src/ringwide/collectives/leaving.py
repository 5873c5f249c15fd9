"""Leaving, after the goodbye: a rank stays until the others have read all that it has sent them.

Rules:
- The last frame on every lane is END. A peer that has read all of them answers with its own, and then the lanes close.
- A peer that leaves as well is not waited for longer than until its own ENDs have come: it needs nothing any more.
- A peer that is lost is not waited for, but our last words get the time to reach its kernel: others say that it is
  lost, and it may live. One that falls silent meanwhile is not waited for any longer. One that computes is: it gives
  signs of life.
- Nothing that has moved for `timeout_seconds` ends the waiting, and so does whoever cancels it. Connections are then
  reset where something has not arrived, so that the peer does not take the rest for everything.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from ringwide.collectives.deadlines import TICK_SECONDS, Clock, HeartbeatSource
from ringwide.errors import ranks_named

logger = logging.getLogger("ringwide.collectives")

LAST_WORDS_SECONDS = 0.5


class LeavingLink(Protocol):
    """What leaving needs of a link; the simulator has its own."""

    on_over: Callable[[], None]

    @property
    def over(self) -> bool:
        """Nothing more is to be expected of it."""

    @property
    def delivered(self) -> bool:
        """All that was sent has reached the peer's kernel."""

    @property
    def moved(self) -> int:
        """Grows whenever something gets there or comes from there."""

    def finish(self) -> None: ...

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
            link.on_over = self._look_who_is_left
            link.finish()
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
