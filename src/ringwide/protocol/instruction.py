"""What a machine tells its executor to do with the numbers of one segment. A machine itself never sees a number.

A machine is told "this segment has arrived at this hop" and answers with a script: instructions to be carried out in
order. The *value* of a segment is what this rank would send of it now: its own numbers at first, then whatever the
last `Combine` or `Keep` left. Scripts are the same for every collective with the same plan, so they are made once.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class Combine(NamedTuple):
    """Value := arrival + value, or value + arrival. The order is the same on every rank, so the bits are too."""

    arrival_first: bool


class Relay(NamedTuple):
    """Send arrival + value on to a peer, and keep neither: a sum on its way round is not ours to store."""

    hop: int
    peer: int


class Keep(NamedTuple):
    """Value := arrival."""


class Finish(NamedTuple):
    """The value is the total of all ranks: do what is done once to a total, such as dividing it for a mean."""


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
        """Everything has arrived; what is still to be sent has been said."""
        ...

    @property
    def overwrites_sent(self) -> bool:
        """Values may change after they were handed out: the sender must copy what it cannot send at once."""
        ...

    def begin(self) -> Iterable[tuple[int, Script]]:
        """What to do first, for each segment that needs something."""
        ...

    def expects(self, peer: int, segment: int, hop: int) -> bool:
        """May this frame still come? Asked before its payload is read."""
        ...

    def combines(self, hop: int) -> bool:
        """Will an arrival at this hop be combined (and not simply kept)?"""
        ...

    def arrive(self, segment: int, hop: int) -> Script:
        """The frame is here. An empty script: too early, bring it again when the segment has moved on."""
        ...

    def waiting_for(self) -> Sequence[int]:
        """The peers whose frames are missing."""
        ...
