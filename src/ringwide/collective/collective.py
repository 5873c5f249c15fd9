"""One collective under way on one rank."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ringwide.collective.channel import SEQUENCE_BITS, Channel, sequence_of
from ringwide.collective.express import ExpressOperation
from ringwide.collective.operation import Operation
from ringwide.collective.plan import Plan
from ringwide.errors import RingwideError

Done = Callable[[RingwideError | None], None]
_AND = "\n"
"""Between what is asked for and who asks, in the words of a dispute."""


class Mark(NamedTuple):
    """Who made a call: what it is known by, mixed into the fingerprint, and in words."""

    bits: int
    caller: str
    calls: int

    def __str__(self) -> str:
        return f"call {self.calls} of {self.caller}"


class Collective:
    """One collective under way on this rank: its operations, one a bucket, succeed or fail together."""

    begun, begun_at = False, 0.0
    told = False  # the other ranks know what we were called with
    progress_seen = -1
    progress_at = warned_at = 0.0
    succeeded: Sequence[Operation | ExpressOperation] = ()  # its operations, when it is over: for an undo

    def __init__(self, number: int, plan: Plan, on_done: Done, *, channel: Channel, mark: Mark | None = None) -> None:
        self.number, self.plan, self.on_done, self._channel, self._mark = number, plan, on_done, channel, mark
        self.fingerprint = plan.fingerprint if mark is None else plan.fingerprint ^ mark.bits
        self.operations: list[Operation | ExpressOperation] = []
        self.unfinished = len(plan.parts)
        self.gated = plan.gate is not None and number >> SEQUENCE_BITS > 0  # its bulk waits until all have called it

    def __repr__(self) -> str:
        return f"<Collective {self.sequence} {self.what}>"

    @property
    def sequence(self) -> int:
        """Its number within its channel, for people."""
        return sequence_of(self.number)

    @property
    def what(self) -> str:
        return self.plan.what + self._channel.suffix

    @property
    def described(self) -> str:
        """What we were called with, and by whom, for ranks that were called with something else."""
        return f"{self.what}{_AND}{self._mark or ''}"

    def compared_with(self, theirs: str) -> tuple[str, str]:
        """What tells our call from one that another rank describes: who made it only if it is the same otherwise."""
        what, _, mark = theirs.partition(_AND)
        if what != self.what or self._mark is None:
            return self.what, what
        return f"{self.what} as {self._mark}", f"it as {mark}"

    @property
    def gate_is_open(self) -> bool:
        return self.plan.gate is not None and self.operations[self.plan.gate].done

    def undo(self) -> None:
        """Its caller was cancelled before it heard of the success, and must find its tensors as they were."""
        for operation in self.succeeded:
            operation.undo()

    def waiting_for(self) -> list[int]:
        if len(self.operations) == 1:
            return self.operations[0].waiting_for()
        return sorted({peer for operation in self.operations for peer in operation.waiting_for()})
