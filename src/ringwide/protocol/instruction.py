"""What a machine tells its executor to do with numbers. A machine itself never sees one.

A machine is told "this segment has arrived at this hop" and answers with instructions, to be carried out in order. The
*value* of a segment is what this rank would send of it now: its own numbers at first, then whatever the last
`Combine` or `Keep` left.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Combine:
    """Value := arrival + value, or value + arrival. The order is the same on every rank, so the bits are too."""

    segment: int
    hop: int
    arrival_first: bool


@dataclass(frozen=True, slots=True)
class Keep:
    """Value := arrival."""

    segment: int
    hop: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The value is the total of all ranks: do what is done once to a total, such as dividing it for a mean."""

    segment: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send the value to a peer, where it arrives at `hop`."""

    segment: int
    hop: int
    peer: int


Instruction = Combine | Keep | Finish | Send


class Machine(Protocol):
    """One rank's side of one collective."""

    @property
    def done(self) -> bool:
        """Everything has arrived; what is still to be sent has been said."""
        ...

    @property
    def overwrites_sent(self) -> bool:
        """A value may change after it was handed out for sending, so the sender must copy what it cannot send at once."""
        ...

    def begin(self) -> Iterable[Instruction]: ...

    def expects(self, peer: int, segment: int, hop: int) -> bool:
        """May this frame come now? Asked before its payload is read."""
        ...

    def combines(self, hop: int) -> bool:
        """Will an arrival at this hop be combined (and not simply kept)?"""
        ...

    def arrive(self, segment: int, hop: int) -> Iterable[Instruction]:
        """The frame is here. No instructions: too early, the executor keeps it until an instruction names it."""
        ...

    def waiting_for(self) -> Sequence[int]:
        """The peers whose frames are missing."""
        ...
