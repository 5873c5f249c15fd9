"""How long nothing was heard of each rank, while somebody waits. Pure: time comes as an argument.

Rules:
- Silence begins when somebody begins to wait, and with everything that is heard it begins anew.
- Time in which this process itself did not run is nobody's silence.
- With the first one that has been silent for too long, all are reported of whom nearly as little was heard: one that
  hears of nobody must know that before it accuses anybody.
"""

from collections.abc import Iterable


class Silence:
    """Of several ranks, each of which can be heard of, or forgotten when it has gone."""

    def __init__(self, peers: Iterable[int], *, suspect_after_seconds: float, beat_seconds: float) -> None:
        self._suspect_after, self._beat = suspect_after_seconds, beat_seconds
        self._heard_at = dict.fromkeys(peers, 0.0)

    def begin(self, now: float) -> None:
        """Nobody was asked before."""
        for peer in self._heard_at:
            self._heard_at[peer] = now

    def hear(self, peer: int, now: float) -> None:
        if peer in self._heard_at:
            self._heard_at[peer] = max(self._heard_at[peer], now)

    def forget(self, peer: int) -> None:
        self._heard_at.pop(peer, None)

    def forgive(self, now: float, seconds: float) -> None:
        """We did not run for so long: what others said meanwhile is perhaps still to be read."""
        for peer, heard_at in self._heard_at.items():
            self._heard_at[peer] = min(now, heard_at + seconds)

    def ends_at(self) -> float:
        """When somebody has been silent for too long, unless it is heard of before."""
        return min(self._heard_at.values(), default=float("inf")) + self._suspect_after

    def broken_by(self, now: float) -> list[int]:
        """Who has been silent for too long. It is told once, and again after as long."""
        if now < self.ends_at():
            return []
        nearly = self._suspect_after - 2 * self._beat
        silent = [peer for peer, heard_at in self._heard_at.items() if now - heard_at >= nearly]
        for peer in silent:
            self._heard_at[peer] = now
        return silent
