"""What is said of those who were not let in: enough to find a mistake, and never so much that a crowd fills a disk."""

import logging
from collections.abc import Callable

logger = logging.getLogger("ringwide.membership")

ADDRESSES_REMEMBERED = 32
QUIET_SECONDS = 10.0


class Strangers:
    """One warning for each address, up to a number of addresses; the rest is counted, and told now and then."""

    def __init__(self, rank: int, *, clock: Callable[[], float]) -> None:
        self._rank, self._clock = rank, clock
        self._warned: set[str] = set()
        self._untold = 0
        self._told_at = float("-inf")

    def turned_away(self, host: str, reason: object) -> None:
        """Somebody with a reason that its owner should know of."""
        if host in self._warned or len(self._warned) >= ADDRESSES_REMEMBERED:
            self.gone(host, reason)
            return
        self._warned.add(host)
        logger.warning("rank %d turned away a connection from %s: %s", self._rank, host, reason)

    def gone(self, host: str, reason: object) -> None:
        """Somebody who went by: a port scan, a peer that was stopped, one of a crowd."""
        self._untold += 1
        if self._clock() - self._told_at < QUIET_SECONDS:
            return
        logger.info(
            "rank=%d connections_ended=%d last_from=%s reason=%s", self._rank, self._untold, host or "somebody", reason
        )
        self._untold, self._told_at = 0, self._clock()
