"""One collective under way on one rank."""

from collections.abc import Callable, Sequence

from ringwide.collective.express import ExpressOperation
from ringwide.collective.operation import Operation
from ringwide.collective.plan import Plan
from ringwide.errors import RingwideError

Done = Callable[[RingwideError | None], None]


class Collective:
    """One collective under way on this rank: its operations, one a bucket, succeed or fail together."""

    begun, begun_at = False, 0.0
    told = False  # the other ranks know what we were called with
    progress_seen = -1
    progress_at = warned_at = 0.0
    succeeded: Sequence[Operation | ExpressOperation] = ()  # its operations, when it is over: for an undo

    def __init__(self, number: int, plan: Plan, on_done: Done) -> None:
        self.number, self.plan, self.on_done = number, plan, on_done
        self.operations: list[Operation | ExpressOperation] = []
        self.unfinished = len(plan.parts)

    def __repr__(self) -> str:
        return f"<Collective {self.number} {self.plan.what}>"

    def undo(self) -> None:
        """Its caller was cancelled before it heard of the success, and must find its tensors as they were."""
        for operation in self.succeeded:
            operation.undo()

    def waiting_for(self) -> list[int]:
        if len(self.operations) == 1:
            return self.operations[0].waiting_for()
        return sorted({peer for operation in self.operations for peer in operation.waiting_for()})
