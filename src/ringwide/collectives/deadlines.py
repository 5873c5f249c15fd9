"""Deadlines of collectives: warns while one waits, asks for heartbeats, and gives it up when its time is over."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ringwide.collectives.running_collective import Collective, channel_of
from ringwide.errors import ranks_named

logger = logging.getLogger("ringwide.collectives")

TICK_SECONDS = 0.125


class Clock(Protocol):
    """Time as an argument: the event loop's, or the simulator's."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> object: ...


class HeartbeatSource(Protocol):
    """What is known of the other ranks' life. Ranks that are silent for too long are told to `Dispatcher.silent`."""

    def watch(self, collective: int, /) -> None:
        """Look for signs of life from now on: this collective waits."""

    def rest(self) -> None:
        """Nobody waits any more."""

    def called(self, peer: int, /) -> int:
        """The last collective that this rank has called, as far as it has told."""


class Patient(Protocol):
    """Something else that waits, and is looked at together with the collectives."""

    @property
    def waits(self) -> bool: ...

    def waits_since(self) -> float:
        """When the oldest of those that wait began to."""
        ...

    def forgive(self, seconds: float) -> None: ...

    def check_progress(self, now: float) -> None: ...

    def set_timeout(self, seconds: float) -> None: ...


class Deadlines:
    """Looks at every open collective from time to time, and never while there is none."""

    def __init__(
        self,
        *,
        open_: Mapping[int, Collective],
        peers: Sequence[int],
        clock: Clock,
        timeout_seconds: float,
        warn_after_seconds: float,
        give_up: Callable[[Collective], None],
        transfers: Patient | None,
    ) -> None:
        self._open, self._peers, self._clock = open_, peers, clock
        self.timeout_seconds, self._warn_after, self._give_up = timeout_seconds, warn_after_seconds, give_up
        self._tick_seconds = min(TICK_SECONDS, timeout_seconds / 4)
        self.ticking = self._watching = False
        self._due = 0.0
        self._heartbeats: HeartbeatSource | None = None  # when it has started
        self._transfers = transfers

    def start(self, heartbeats: HeartbeatSource) -> None:
        """All ranks are there. Before, how long they may take is for `join` to say."""
        self._heartbeats = heartbeats

    def set_timeout(self, seconds: float) -> None:
        """From now on, also for what is open. The first tick after this may still come as late as before."""
        self.timeout_seconds, self._tick_seconds = seconds, min(TICK_SECONDS, seconds / 4)
        if self._transfers is not None:
            self._transfers.set_timeout(seconds)

    def start_ticking(self) -> None:
        if not self.ticking:
            self.ticking = True
            self._due = self._clock.time() + self._tick_seconds
            self._clock.call_later(self._tick_seconds, self._tick)

    def missing_from(self, collective: Collective) -> list[int]:
        """Whom a collective waits for: those who have not called it; if all have, those whose numbers are due here."""
        if self._heartbeats is not None and not channel_of(collective.number):  # signs of life tell of no other channel
            late = [peer for peer in self._peers if self._heartbeats.called(peer) < collective.number]
            if late:
                return sorted(late)
        return collective.waiting_for()

    def _tick(self) -> None:
        self.ticking = False
        now = self._clock.time()
        if now - self._due > self._tick_seconds:
            self._forgive(now - self._due)
        for collective in list(self._open.values()):
            self._check_progress(collective, now)
        if self._transfers is not None:
            self._transfers.check_progress(now)
        if self._heartbeats is not None:
            self._watch(self._heartbeats, now)
        if self._open or self._a_transfer_waits:
            self.start_ticking()

    @property
    def _a_transfer_waits(self) -> bool:
        return self._transfers is not None and self._transfers.waits

    def _forgive(self, seconds: float) -> None:
        """Our own event loop stood still for so long: what has come meanwhile is perhaps still to be read."""
        for collective in self._open.values():
            collective.progress_at += seconds
            collective.warned_at += seconds
        if self._transfers is not None:
            self._transfers.forgive(seconds)

    def _check_progress(self, collective: Collective, now: float) -> None:
        progress = sum(operation.progress for operation in collective.operations)
        if progress != collective.progress_seen or not collective.begun or self._heartbeats is None:
            collective.progress_seen, collective.progress_at = progress, now
            collective.warned_at = now
        elif now - collective.progress_at >= self.timeout_seconds:
            self._give_up(collective)
        elif now - collective.warned_at >= self._warn_after:
            collective.warned_at = now
            self._warn(collective, now - collective.progress_at)

    def _warn(self, collective: Collective, seconds: float) -> None:
        whom = ranks_named(self.missing_from(collective))
        logger.warning(
            "collective %d %s: waiting for %s (%.0f s without progress)",
            collective.sequence,
            collective.kind,
            whom,
            seconds,
        )

    def _watch(self, heartbeats: HeartbeatSource, now: float) -> None:
        """Signs of life are asked for while something waits for longer than a tick."""
        waiting = [one for one in self._open.values() if one.begun and now - one.begun_at >= self._tick_seconds]
        if waiting:
            self._watching = True
            heartbeats.watch(min((one.number for one in waiting if not channel_of(one.number)), default=0))
        elif (
            self._transfers is not None
            and self._transfers.waits
            and now - self._transfers.waits_since() >= self._tick_seconds
        ):
            self._watching = True
            heartbeats.watch(0)  # not a collective: nobody is late
        elif self._watching:
            self._watching = False
            heartbeats.rest()
