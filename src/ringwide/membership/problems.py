"""What stands between this rank and those that it dials: told when it is found, and again when time is up."""

import logging

logger = logging.getLogger("ringwide.membership")

TOLD_OF_ONE_PEER = 4
"""So many different problems: who answers with nonsense finds a new one every time."""


class Problems:
    """By peer. Each problem is one warning, however often it is met."""

    def __init__(self) -> None:
        self._last: dict[int, str] = {}
        self._told: dict[int, set[str]] = {}

    def note(self, peer: int, address: object, problem: str) -> None:
        self._last[peer] = problem
        told = self._told.setdefault(peer, set())
        if problem not in told and len(told) < TOLD_OF_ONE_PEER:
            told.add(problem)
            logger.warning("rank %d at %s: %s", peer, address, problem)

    def solved(self, peer: int) -> None:
        self._last.pop(peer, None)

    def of(self, peer: int) -> str | None:
        return self._last.get(peer)
