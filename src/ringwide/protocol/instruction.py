"""Instructions of a state machine to its executor, which holds the numbers. A machine itself never sees a number.

A machine is told "this segment has arrived at this hop" and returns a script: instructions to be carried out in order.
The *value* of a segment is what this rank would send of it now: its own numbers at first, then the result of the last
`Combine` or `Keep`. Scripts are the same for every collective with the same plan, so they are made once.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class Combine(NamedTuple):
    """Value := arrival + value, or value + arrival. The plan fixes the order, so every rank computes the same bits."""

    arrival_first: bool


class Relay(NamedTuple):
    """Send arrival + value on to a peer without storing it: a partial sum is of no use here."""

    hop: int
    peer: int


class Keep(NamedTuple):
    """Value := arrival."""


class Finish(NamedTuple):
    """The value is the total of all ranks: apply what is done once to a total, such as the division of a mean."""


class Send(NamedTuple):
    """Send the value to a peer, where it arrives at `hop`."""

    hop: int
    peer: int


Instruction = Combine | Relay | Keep | Finish | Send
Script = tuple[Instruction, ...]


class Machine(Protocol):
    """One rank's side of one collective."""

    @property
    def done(self) -> bool:
        """Whether everything has arrived. All sends have been handed out then."""
        ...

    @property
    def overwrites_sent(self) -> bool:
        """Whether values may change after they were handed out, so that what cannot be sent at once must be copied."""
        ...

    def begin(self) -> Iterable[tuple[int, Script]]:
        """The first script of each segment that has one."""
        ...

    def expects(self, peer: int, segment: int, hop: int) -> bool:
        """Whether this frame may still come. Asked before its payload is read."""
        ...

    def combines(self, hop: int) -> bool:
        """Whether an arrival at this hop is combined, and not simply kept."""
        ...

    def is_partial(self, hop: int) -> bool:
        """Whether an arrival at this hop is a sum of several ranks, but not of all."""
        ...

    def arrive(self, segment: int, hop: int) -> Script:
        """The script for a frame that is here. Empty: too early, ask again when the segment has moved on."""
        ...

    def waiting_for(self) -> Sequence[int]:
        """The peers whose frames are missing."""
        ...
