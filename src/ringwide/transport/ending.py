"""The end of a link, which ends as a whole.

When the peer has said END on every lane, all that it ever sent has been read. It hears that by our own END on every
lane, and not before; then the lanes close. Two that leave at the same time need no answer: their ENDs cross.
"""

from collections.abc import Callable, Collection
from typing import Protocol


class LaneLike(Protocol):
    """What the end of a link needs of its lanes; the simulator has its own."""

    on_end: Callable[[], None]

    @property
    def ended(self) -> bool:
        """The peer's END has been read."""

    @property
    def closed(self) -> bool: ...

    @property
    def delivered(self) -> bool:
        """What was sent, up to our END, is where a peer that lives will read it."""

    @property
    def moved(self) -> int: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...

    def reset(self) -> None: ...


class Ending:
    """What a link is told by its lanes, and tells: `on_ended`, all that `peer` sends has come; `on_over`."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self._ended = False
        self.on_ended: Callable[[int], None] = _nobody
        self.on_over: Callable[[], None] = _nothing

    def all_lanes(self) -> Collection[LaneLike]:
        raise NotImplementedError

    def finish(self) -> None:
        """Say END on every lane. They close when the peer has done so too."""
        for lane in list(self.all_lanes()):
            lane.finish()

    def abandon(self) -> None:
        """Do not wait for that. What the peer's kernel has got is there to be read; where it has not, it hears so."""
        for lane in list(self.all_lanes()):
            if lane.delivered:
                lane.close()
            else:
                lane.reset()

    @property
    def over(self) -> bool:
        """Nothing more is to be expected of the peer: all lanes have closed, or one broke."""
        lanes = self.all_lanes()
        return any(lane.closed and not lane.ended for lane in lanes) or all(lane.closed for lane in lanes)

    @property
    def delivered(self) -> bool:
        return all(lane.closed or lane.delivered for lane in self.all_lanes())

    @property
    def moved(self) -> int:
        """Grows with what gets there and what comes from there."""
        return sum(lane.moved for lane in self.all_lanes())

    def lane_has_ended(self) -> None:
        """One lane has ended, or was closed."""
        if not self._ended and all(lane.ended for lane in self.all_lanes()):
            self._ended = True
            self.finish()
            self.on_ended(self.peer)
        if self.over:
            self.on_over()


def _nobody(_: int) -> None: ...


def _nothing() -> None: ...
