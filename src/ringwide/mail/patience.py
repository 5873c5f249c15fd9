"""How long a letter may wait: who is told meanwhile, and when it is given up."""

import logging
import math
from collections.abc import Callable

from ringwide.errors import CollectiveTimeout, ranks_named
from ringwide.mail.desk import AnyLetter, Desk

logger = logging.getLogger("ringwide.mail")


class Patience:
    """Looks at the open letters whenever the deadlines of collectives are looked at.

    There is a warning every `warn_after_seconds` at most, for all that wait for as long.
    """

    def __init__(
        self,
        desk: Desk,
        *,
        timeout_seconds: float,
        warn_after_seconds: float,
        give_up: Callable[[AnyLetter, str, Exception], None],
    ) -> None:
        self._desk, self._give_up = desk, give_up
        self._timeout, self._warn_after = timeout_seconds, warn_after_seconds
        self._warned_at = -math.inf

    def forgive(self, seconds: float) -> None:
        """Our own event loop stood still for so long."""
        self._warned_at += seconds
        for letter in self._desk.open:
            letter.progress_at += seconds

    def check(self, now: float) -> None:
        late = []
        for letter in list(self._desk.open):
            if letter.progress != letter.progress_seen:
                letter.progress_seen, letter.progress_at = letter.progress, now
            elif now - letter.progress_at >= self._timeout:
                self._time_out(letter)
            elif now - letter.progress_at >= self._warn_after:
                late.append(letter)
        if late and now - self._warned_at >= self._warn_after:
            self._warned_at = now
            self._warn(late, now)

    def _time_out(self, letter: AnyLetter) -> None:
        reason = f"no progress for {self._timeout:g} s (collective_timeout_seconds)"
        whom = self._waiting_for(letter)
        error = CollectiveTimeout(number=0, what=str(letter), waiting_for=whom, seconds=self._timeout)
        self._give_up(letter, reason, error)

    def _warn(self, late: list[AnyLetter], now: float) -> None:
        """One line, however many there are."""
        oldest = min(late, key=lambda letter: letter.progress_at)
        whom = ranks_named(sorted({peer for letter in late for peer in self._waiting_for(letter)}))
        which = str(oldest) if len(late) == 1 else f"{len(late)} messages, first {oldest}"
        logger.warning("%s: waiting for %s (%.0f s without progress)", which, whom, now - oldest.progress_at)

    def _waiting_for(self, letter: AnyLetter) -> list[int]:
        """A receive from anybody waits for all."""
        return sorted(self._desk.mail_with) if letter.peer is None else [letter.peer]
